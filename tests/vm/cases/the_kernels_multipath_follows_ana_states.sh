# One volume at two addresses, and the kernel's native multipath: it hears of the ANA state of each, goes on over the other path without
# an error while fio verifies, and waits while there is none.
# drives: 4096 4096
# limit: 280
modprobe nvme-tcp
ip link set lo up 2>/dev/null || ifconfig lo up
[[ $(</sys/module/nvme_core/parameters/multipath) == Y ]] || fail "the kernel has no native multipath"
start_daemon
p group create tank --level raid1 --drives "$(drives 1 2)" --yes >&2
p volume create tank/a --size 32MiB >&2
HOST=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555
ID=11111111-2222-4333-8444-555555555555
for port in 4420 4421; do p export create tank/a --nvme-tcp 127.0.0.1:$port --host "$HOST" >&2; done
NQN=$(json '.exports[0].nqn' export list)

# export_at PORT; ana PORT STATE: tells hosts of it. state PORT: as the kernel knows it.
export_at() { json ".exports[] | select(.address == \"127.0.0.1:$1\") | .id" export list; }
ana() { p export set "$(export_at "$1")" --ana "$2" >&2; }
state() {
    local controller
    for controller in /sys/class/nvme/nvme*; do
        [[ $(<"$controller/address") == *"trsvcid=$1"* ]] && cat "$controller"/nvme*c*n1/ana_state && return
    done
    return 1
}
is_in() { [[ $(state "$1" 2>/dev/null) == "$2" ]]; }
# know STATE STATE: waits until the kernel knows both, and prints them.
know() {
    wait_for 30 is_in 4420 "$1"
    wait_for 30 is_in 4421 "$2"
    echo "4420 $(state 4420), 4421 $(state 4421)"
}
# reads PORT: answered so far. more PORT THAN.
reads() { json ".hosts[] | select(.nqn == \"$HOST\") | .exports[] | select(.address == \"127.0.0.1:$1\") | .io.read_count" host list; }
more() { (($(reads "$1") > $2)); }
# here PORT OTHER: for fifty reads there, none went to the other. only PORT OTHER: it comes to that. A kernel remembers the states from before
# an outage, and reads go to the address that is back first, until the better one is, too.
here() {
    local at_port at_other
    at_port=$(reads "$1")
    at_other=$(reads "$2")
    wait_for 60 more "$1" $((at_port + 50))
    [[ $(reads "$2") == "$at_other" ]]
}
only() {
    wait_for 60 here "$1" "$2"
    echo "reads go to $1 only"
}

for port in 4420 4421; do
    nvme connect -t tcp -a 127.0.0.1 -s $port -n "$NQN" -i 2 --hostnqn "$HOST" --hostid "$ID" --ctrl-loss-tmo 120 --reconnect-delay 1 >&2
done
node() { for path in /sys/class/nvme-subsystem/*/nvme*n1; do [[ -e $path && $(<"${path%/*}/subsysnqn") == "$NQN" ]] && echo "/dev/${path##*/}" && return; done; return 1; }
is_there() { node >/dev/null; }
wait_for 30 is_there
device=$(node)
know optimized optimized

(
    while [[ ! -e /run/enough ]]; do
        fio --name=verify --filename="$device" --ioengine=libaio --direct=1 --iodepth=8 --rw=randrw --bs=4k --size=4m --verify=crc32c \
            --verify_fatal=1 --minimal >/run/fio 2>&1 || touch /run/failed
    done
) &
loop=$!
ana 4420 inaccessible
know inaccessible optimized
only 4421 4420
ana 4420 optimized
ana 4421 non-optimized
know optimized non-optimized
only 4420 4421
# Stopped in order and started again: hosts wait, and none of their commands fails.
for _ in 1 2 3; do
    stop_daemon TERM
    start_daemon
    know optimized non-optimized
    only 4420 4421
done
# No way: what is asked waits.
ana 4421 inaccessible
ana 4420 inaccessible
know inaccessible inaccessible
before=$(reads 4420),$(reads 4421)
ana 4421 non-optimized
know inaccessible non-optimized
only 4421 4420
[[ $before == "$(reads 4420),"* ]] || fail "read at a closed address"
touch /run/enough
wait "$loop"
[[ ! -e /run/failed ]] || { cat /run/fio >&2; fail "fio"; }
dmesg | grep -E 'I/O error|critical .* error|ANA log.*larger|WARNING:' && fail "the kernel complains"
nvme disconnect -n "$NQN" >&2
echo "fio has seen nothing of it"
