# A daemon on the machine outside, and the kernel's initiator in here, over a network that loses, delays and reorders: ext4 and XFS with fio that
# verifies, while controllers are reset, the daemon is killed, and two drives fail; a namespace grows and another comes. Host and target prove themselves on each connection, with both digests.
# At last the same inside of TLS.
# drives: 4096
# limit: 400
modprobe -a nvme-tcp nvme-auth dh_generic hmac sha256_generic sha512_generic virtio_net sch_netem tls gcm aesni_intel
ip link set lo up
for net in /sys/class/net/e*; do link=${net##*/}; done
ip addr add 10.0.2.15/24 dev "$link"
ip link set "$link" up
HOST=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555
ID=11111111-2222-4333-8444-555555555555
read -r PORT NQN SECRET CTRL_SECRET < <(host run start "$HOST")
nvme discover -t tcp -a 10.0.2.2 -s "$PORT" --hostnqn "$HOST" --hostid "$ID" | grep -c "subnqn: *$NQN"
# to SECRET [ARGUMENTS]: connects.
to() {
    nvme-13 connect -t tcp -a 10.0.2.2 -s "$PORT" -n "$NQN" -i 2 --hostnqn "$HOST" --hostid "$ID" --ctrl-loss-tmo 120 --reconnect-delay 1 --hdr-digest --data-digest \
        --dhchap-secret "$1" --dhchap-ctrl-secret "$CTRL_SECRET" "${@:2}" >&2
}
to "$CTRL_SECRET" && fail "in with another secret"
echo "not with another secret"
to "$SECRET" || fail "not in with the right secret"
# node NSID: its block device, whose number may be another, since the kernel looks at all namespaces at once.
node() {
    local path
    for path in /sys/class/nvme-subsystem/*/nvme*n*; do
        [[ -e $path/nsid && $(<"${path%/*}/subsysnqn") == "$NQN" && $(<"$path/nsid") == "$1" ]] && echo "/dev/${path##*/}" && return
    done
    return 1
}
both() { node 1 && node 2; }
wait_for 20 both >&2
control=$(grep -l "^$NQN" /sys/class/nvme/nvme*/subsysnqn | cut -d/ -f5)
make_fs ext4 "$(node 1)"
make_fs xfs "$(node 2)"
mkdir -p /ext4 /xfs
mount -t ext4 "$(node 1)" /ext4
mount -t xfs "$(node 2)" /xfs
tc qdisc add dev "$link" root netem delay 2ms 1ms loss 0.5% reorder 5%
declare -A load
# The kernel sends a request in the context of who asks for it, and without MSG_NOSIGNAL: who asks while the daemon dies gets SIGPIPE.
trap '' PIPE
for kind in ext4 xfs; do
    fio --name=$kind --directory=/$kind --ioengine=libaio --direct=1 --iodepth=8 --rw=randrw --bs=4k-32k --blockalign=4k --serialize_overlap=1 --size=8m \
        --time_based --runtime=600 --verify=crc32c --verify_backlog=64 --verify_fatal=1 --fsync=64 --randseed=5 --eta=never --output=/run/fio-$kind &
    load[$kind]=$!
done
done_now() { for nsid in 1 2; do awk '{ print $1 + $5 }' "/sys/block/$(basename "$(node $nsid)")/stat"; done; }
# moves WHAT: requests of both are answered again.
moves() {
    local before kind
    before=$(done_now)
    more() { [[ $(paste <(echo "$before") <(done_now) | awk '$2 > $1 + 20' | wc -l) == 2 ]]; }
    wait_for 120 more
    for kind in ext4 xfs; do kill -0 "${load[$kind]}" 2>/dev/null || { cat /run/fio-$kind >&2; fail "fio over $kind ended: $1"; }; done
    echo "$1"
}
moves "both file systems are in use"
for turn in 1 2 3; do
    nvme reset "/dev/$control"
    moves "reset under load: $turn"
done
for turn in 1 2 3; do
    host run kill
    moves "killed under load, and connected again: $turn"
done
host run fail-drives
moves "two drives have failed"
# What is lost is what leaves here: the rest of the way is QEMU's.
dropped() { tc -s qdisc show dev "$link" | grep -o 'dropped [0-9]*' | cut -d' ' -f2; }
(($(dropped) > 10)) && echo "packets were lost" || tc -s qdisc show dev "$link" >&2
host run grow "$HOST" "$PORT"
has_grown() { [[ $(blockdev --getsize64 "$(node 1)") == $((96 << 20)) ]] && node 3; }
wait_for 60 has_grown >&2 && echo "one has grown, and another has come"
moves "and both are in use"
for kind in ext4 xfs; do
    fio_ends "${load[$kind]}" "/run/fio-$kind"
    echo "fio over $kind verified everything"
done
dmesg | grep -iE 'I/O error|critical' >&2 && fail "the kernel saw errors"
umount /ext4 /xfs
check_fs ext4 "$(node 1)" >&2 && check_fs xfs "$(node 2)" >&2 && echo "and both are clean"
nvme disconnect -n "$NQN" >&2

host run tls "$HOST" >/run/tls.key
start_tlshd
in_keyring /run/tls.key "$HOST" "$NQN"
to "$SECRET" && fail "in without TLS"
echo "not in the clear, once the host has a key"
to "$SECRET" --tls || fail "not in with TLS"
wait_for 20 both >&2
mount -t ext4 "$(node 1)" /ext4
fio --name=tls --directory=/ext4 --ioengine=libaio --direct=1 --iodepth=8 --rw=randrw --bs=4k-32k --blockalign=4k --serialize_overlap=1 --size=8m \
    --time_based --runtime=600 --verify=crc32c --verify_backlog=64 --verify_fatal=1 --fsync=64 --randseed=5 --eta=never --output=/run/fio-tls &
load=([tls]=$!)
sleep 3
before=$(tls_sessions)
host run kill
# Each of its three queues.
back() { (($(tls_sessions) >= before + 3)); }
wait_for 120 back
echo "killed under load, and connected again inside of TLS"
sleep 3
fio_ends "${load[tls]}" /run/fio-tls
umount /ext4
check_fs ext4 "$(node 1)" >&2 && echo "and the file system is clean"
awk '$1 == "TlsDecryptError"' /proc/net/tls_stat | tr -s '\t ' ' '
tc qdisc del dev "$link" root
nvme disconnect -n "$NQN" >&2
