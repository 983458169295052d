# A member that was pulled is put back while no daemon runs, and is taken back at the next start. One that failed and was there all the time is
# not; an empty drive that came meanwhile is offered, also at the start after that.
# drives: 4096 4096 4096 4096
# mib: 64
# limit: 180
start_daemon
p group create tank --level raid6 --drives "$(drives 1 4)" --yes >&2
health() { [[ $(json .health group show tank) == "$1" ]]; }
has_no_jobs() { [[ $(json '[.jobs[] | select(.state == "running")] | length' group show tank) == 0 ]]; }
whole_again() { health optimal && has_no_jobs; }
offered() { [[ $(json '.warnings[]' group show tank) == *"$(drive 2) is new and empty: purlin drive replace tank 1 --with $(drive 2)"* ]]; }

host unplug 2
wait_for 5 health degraded
stop_daemon TERM
host plug 2
start_daemon
wait_for 60 whole_again
echo "put back while no daemon ran: optimal"

stop_daemon KILL
start_daemon
whole_again || fail "a start without a change changed something"
p drive fail tank 0 --yes >&2
stop_daemon TERM
start_daemon
sleep 12
health degraded || fail "a drive that failed was taken back"
[[ $(json '[.members[] | select(.state == "in_sync")] | length' group show tank) == 3 ]] || fail "not three members"
echo "failed and still there: left out"

host unplug 1
sleep 1
host plug 1
wait_for 60 whole_again
echo "failed, pulled and put back: optimal"

host unplug 2
wait_for 5 health degraded
stop_daemon KILL
host replace 2
start_daemon
wait_for 20 offered
stop_daemon TERM
start_daemon
wait_for 20 offered
health degraded || fail "an empty drive was used unasked"
p drive replace tank 1 --with "$(drive 2)" --wait >&2
whole_again || fail "not rebuilt"
stop_daemon TERM
start_daemon
whole_again || fail "not whole after a start"
[[ $(json '[.drives[] | select(.role == "none")] | length' drive list) == 0 ]] || fail "still offered"
echo "new and empty: offered at each start until it is used"
stop_daemon TERM
