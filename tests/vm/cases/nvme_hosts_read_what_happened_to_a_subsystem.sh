# The Persistent Event Log with the kernel's initiator and nvme-cli: a reporting context, what it says, and that the log outlives a reset of
# the controller and a killed daemon.
# drives: 4096 4096
# limit: 240
modprobe nvme-tcp
ip link set lo up 2>/dev/null || ifconfig lo up
start_daemon
p group create tank --level raid1 --drives "$(drives 1 2)" --yes >&2
p volume create tank/a --size 32MiB >&2
p export create tank/a --nvme-tcp 127.0.0.1:4420 --allow-any-host >&2
NQN=$(json '.exports[0].nqn' export list)
ID=11111111-2222-4333-8444-555555555555
nvme connect -t tcp -a 127.0.0.1 -s 4420 -n "$NQN" --hostnqn "nqn.2014-08.org.nvmexpress:uuid:$ID" --hostid "$ID" --ctrl-loss-tmo 60 --reconnect-delay 1 >&2

# controller: its device, when it is connected.
controller() {
    local path
    for path in /sys/class/nvme/nvme*; do
        [[ $(<"$path/subsysnqn") == "$NQN" && $(<"$path/state") == live ]] && echo "/dev/${path##*/}" && return
    done
    return 1
}
is_connected() { controller >/dev/null; }
# log ARGUMENTS: as nvme-cli prints it, in /run/log.
log() { nvme persistent-event-log "$(controller)" "$@" >/run/log 2>&1 && cat /run/log >&2; }
# events: power cycles and what happened, the newest first. More than the log has is asked for, in one piece: nvme-cli 2.3 leaves out an
# event that ends where the log does. A host that is slow may have to reset more than once: resets in a row are one here.
events() {
    log --action=1 || fail "$(cat /run/log)"
    log --action=0 -l 4096 || fail "$(cat /run/log)"
    grep -o 'Power Cycle Count: .*' /run/log
    awk '/^Power On Reset/ { what = "power on" } /^Controller ID:/ { what = "reset" } /^Namespace Management CDW10/ { what = "namespace change " $4 }
        /^Namespace ID:/ { what = what " of " $3 } /^Event Number|^$/ { if (what) print what; what = "" } END { if (what) print what }' /run/log | uniq
    log --action=2 || fail "$(cat /run/log)"
}

wait_for 20 is_connected
nvme id-ctrl "$(controller)" | grep -E '^(lpa|pels) ' | tr -s ' '
log --action=0 && fail "read without a context"
grep -io 'sequence.error' /run/log | sed -n 1p
log --action=1 >&2
log --action=1 && fail "established twice"
grep -io 'sequence.error' /run/log | sed -n 1p
log --action=0
grep '^Total Number of Events' /run/log
log --action=2
echo "released"
events

echo "-- reset"
nvme reset "$(controller)" >&2
wait_for 30 is_connected
is_saved() { grep -q controller-reset "$STATE"/history-*.json; }
wait_for 30 is_saved
echo "-- kill -9"
stop_daemon KILL
start_daemon
# A command that waits until the controller is connected again.
answers() { dd if="$(controller)n1" of=/dev/null bs=4k count=1 iflag=direct status=none 2>/dev/null; }
wait_for 60 answers
events
nvme disconnect -n "$NQN" >&2
