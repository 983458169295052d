# `purlin nvme`, a host without a kernel module, at the kernel's target (nvmet): discovery, digests, data verified by fio through the
# kernel's NBD client, a target that goes away under load and comes back, and a network that loses, delays and reorders packets.
# drives: 4096
# limit: 240
modprobe -a nvmet nvmet-tcp nbd sch_netem
ip link set lo up 2>/dev/null || ifconfig lo up
NQN=nqn.2026-11.com.example:shelf
HOST=nqn.2026-11.com.example:host
kernels_target "$NQN" "$HOST" 1

host_nvme() { purlin nvme "$1" "${@:2}" --hostnqn "$HOST"; }
host_nvme discover 127.0.0.1:4421 -o json | jq -r '.subsystems[] | select(.kind == "nvme") | .nqn'
if purlin nvme connect 127.0.0.1:4421 "$NQN" --nbd "unix:$NBD" --hostnqn nqn.2026-11.com.example:stranger 2>/run/refused; then
    fail "a stranger got in"
fi
cat /run/refused >&2
echo "a stranger is refused"
host_nvme bench 127.0.0.1:4421 "$NQN" --randwrite --seconds 1 --destroys-data >&2
echo "measured writes"

# attach OPTIONS: the namespace becomes /dev/nbd0, by way of a local NBD socket.
attach() {
    host_nvme connect 127.0.0.1:4421 "$NQN" --nbd "unix:$NBD" "$@" >/run/connected 2>&1 &
    CONNECTED=$!
    is_served() { [[ -S $NBD ]]; }
    wait_for 20 is_served
    nbd-client -unix "$NBD" /dev/nbd0 -block-size 4096 -timeout 120 >&2
}
detach() {
    nbd_detach
    purlin nvme disconnect "$NQN" >&2
    wait "$CONNECTED" || fail "connect ended with $?: $(cat /run/connected)"
    is_gone() { ! nbd-client -c /dev/nbd0 >/dev/null; }
    wait_for 20 is_gone
}
# verified SIZE MORE...: fio writes and reads back.
verified() {
    fio --name=verify --filename=/dev/nbd0 --ioengine=libaio --direct=1 --iodepth=16 --rw=randrw --bsrange=4k-128k --blockalign=4k --serialize_overlap=1 \
        --size="$1" --verify=crc32c --verify_fatal=1 --fsync=32 --minimal "${@:2}" >/run/fio || fail "fio: $(cat /run/connected)"
}

for digests in "" "--hdr-digest --data-digest"; do
    # shellcheck disable=SC2086
    attach $digests
    verified 8m
    detach
    echo "fio verifies with ${digests:-no digests}"
done

attach --data-digest --nr-io-queues 2 --keep-alive-tmo 2
verified 4m --time_based --runtime=8 &
load=$!
sleep 2
rm "$PORT/subsystems/$NQN"
sleep 3
[[ $(purlin nvme list -o json | jq -r '.connections[0].paths[0].state') == connecting ]] || fail "it is still there"
ln -s "$SUBSYSTEM" "$PORT/subsystems/$NQN"
wait "$load"
echo "a target that goes away and comes back is waited for"

tc qdisc add dev lo root netem delay 2ms 2ms loss 5% reorder 25% 50%
# Some 250 packets each time: it is chance whether one of them is lost.
for _ in 1 2 3 4 5; do
    verified 2m
    ! tc -s qdisc show dev lo | grep 'dropped [1-9]' >/dev/null || break
done
tc -s qdisc show dev lo >&2
tc -s qdisc show dev lo | grep 'dropped [1-9]' >/dev/null || fail "nothing was lost"
tc qdisc del dev lo root
echo "lost, late and reordered packets change nothing"
detach
purlin nvme list >&2
[[ $(purlin nvme list -o json | jq '.connections | length') == 0 ]] && echo "and nothing is left"
