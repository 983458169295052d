# While the daemon is down, a drive of a group and a strange one exchange names. The group starts whole. Then all of its drives are away
# while the daemon starts: it is started as soon as they come.
# drives: 4096 4096 4096 512
# limit: 120
start_daemon
p group create tank --level raid5 --drives "$(drives 1 3)" --yes >&2
p volume create tank/v --size 16MiB >&2
before=$(drive 1) other=$(drive 4)
stop_daemon TERM
host unplug 1
host unplug 4
# The kernel gives the lowest free name, and names drives in the order in which they answered at boot: the one with the later name first.
if [[ $before < $other ]]; then first=4; else first=1; fi
named() { [[ $(drive "$1") == "$2" && -b $2 ]]; }
host plug $first
wait_for 20 named $first "$(printf '%s\n' "$before" "$other" | sort | sed -n 1p)"
host plug $((5 - first))
wait_for 20 named 1 "$other"
named 4 "$before" || fail "drive 4 is $(drive 4), not $before"
echo "names: exchanged"
start_daemon
p drive list >&2
echo "group: $(json .health group show tank)"
grep -q "$(drive 1)" "$STATE/groups.json" || fail "its new name is not remembered"
stop_daemon TERM

for n in 1 2 3; do host unplug $n; done
start_daemon
[[ $(json '.groups | length' group list) == 0 ]] || fail "a group without drives"
echo "without drives: no group"
for n in 3 1 2; do host plug $n; done
optimal() { [[ $(json '.groups[].health' group list) == optimal ]]; }
wait_for 30 optimal
echo "with drives: $(json .health group show tank)"
json '.volumes[].name' volume list
stop_daemon TERM
