# Volumes as namespaces over NVMe/TCP, with the kernel's initiator and nvme-cli: discovery, refusal of strange hosts, connect with
# and without digests, data verified by fio, ext4 and XFS, Compare, Copy, discard, durable writes, namespaces that come, grow and go while connected.
# quick: the kernel's NVMe/TCP host
# drives: 4096 4096 4096 4096
# mib: 200
# limit: 300
modprobe nvme-tcp
ip link set lo up 2>/dev/null || ifconfig lo up
start_daemon
p group create tank --level raid5 --strip 64KiB --drives "$(drives 1 4)" --yes >&2
p volume create tank/a --size 64MiB >&2
p volume create tank/b --size 32MiB >&2
p volume create tank/xfs --size 320MiB >&2
HOST=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555
ID=11111111-2222-4333-8444-555555555555
p export create tank/a --nvme-tcp 127.0.0.1:4420 --host "$HOST" >&2
NQN=$(json '.exports[0].nqn' export list)
p export list >&2
p export show "$(json '.exports[0].id' export list)" | grep -o 'nvme connect.*' | sed "s/$NQN/NQN/"

# to NQN MORE...: connects as a host.
to() { nvme connect -t tcp -a 127.0.0.1 -s 4420 -n "$1" -i 2 --ctrl-loss-tmo 60 --reconnect-delay 1 "${@:2}" 2>&1; }
# node NSID: the block device of a namespace.
node() {
    local path
    for path in /sys/class/nvme-subsystem/*/nvme*n"$1"; do
        [[ -e $path && $(<"${path%/*}/subsysnqn") == "$NQN" ]] && echo "/dev/$(basename "$path")" && return
    done
    return 1
}
is_there() { node "$1" >/dev/null; }

nvme discover -t tcp -a 127.0.0.1 -s 4420 --hostnqn "$HOST" --hostid "$ID" >/run/discovered
grep -E 'trtype|adrfam|subtype|trsvcid|traddr|sectype' /run/discovered | tail -n 6 | tr -s ' '
grep -c "subnqn:.*uuid" /run/discovered
nvme discover -t tcp -a 127.0.0.1 -s 4420 --hostnqn nqn.2026-11.com.example:stranger --hostid 22222222-2222-4333-8444-555555555555 |
    grep -c "subnqn:.*uuid" || echo "a stranger discovers nothing"
to "$NQN" --hostnqn nqn.2026-11.com.example:stranger --hostid 22222222-2222-4333-8444-555555555555 >&2 && fail "a stranger got in"
echo "a stranger is refused"

for digests in "" "--hdr-digest" "--data-digest" "--hdr-digest --data-digest"; do
    # shellcheck disable=SC2086
    to "$NQN" --hostnqn "$HOST" --hostid "$ID" $digests >&2 || fail "connect $digests"
    wait_for 20 is_there 1
    device=$(node 1)
    fio --name=verify --filename="$device" --ioengine=libaio --direct=1 --iodepth=16 --rw=randrw --bsrange=4k-256k --blockalign=4k --serialize_overlap=1 \
        --size=8m --verify=crc32c --verify_fatal=1 --fsync=32 --randseed=7 --minimal >/run/fio || fail "fio with $digests"
    nvme disconnect -n "$NQN" >&2
    echo "fio verifies with ${digests:-no digests}"
done

wait_for 30 grep -q 'is served by this daemon' /run/purlind.log && echo "the daemon does not read what it serves itself"
to "$NQN" --hostnqn "$HOST" --hostid "$ID" >&2
wait_for 20 is_there 1
device=$(node 1)
# Node, serial number, model, namespace, use, format and firmware; of them what is the same each time.
nvme list | grep "^$device " | grep -oE 'Purlin.* [0-9]+ B ' | tr -s ' '
nvme list-subsys | grep -A3 "$NQN" | grep -oE 'tcp traddr=[0-9.]*,trsvcid=[0-9]*.* live' | sed 's/,src_addr=[^ ]*//'
nvme id-ctrl "$device" | grep -E '^(mn|mdts|oncs|vwc|cmic|sgls) ' | tr -s ' '
nvme id-ns "$device" | grep -E '^(nsze|dlfeat|nmic|nows) |in use' | tr -s ' '
nvme smart-log "$device" | grep -E '^critical_warning' | tr -s '\t ' ' '
nvme ana-log "$device" | grep -c 'optimized'
blockdev --getsize64 "$device"
cat "/sys/block/$(basename "$device")/queue/"{logical_block_size,optimal_io_size,write_cache}

head -c 1048576 /dev/urandom >/run/data
dd if=/run/data of="$device" bs=64k oflag=direct,dsync seek=256 status=none
dd if="$device" bs=1M iflag=direct skip=16 count=1 status=none | cmp - /run/data && echo "durable writes are there"
nvme compare "$device" --start-block=4096 --block-count=7 --data-size=32768 --data=/run/data 2>&1 | grep -o 'compare: Success'
nvme write-zeroes "$device" --start-block=4096 --block-count=127 >&2
dd if="$device" bs=64k iflag=direct skip=256 count=8 status=none | cmp - <(head -c 524288 /dev/zero) && echo "zeroed"
{ nvme compare "$device" --start-block=4096 --block-count=7 --data-size=32768 --data=/run/data 2>&1 || true; } | grep -o 'Compare Failure'
nvme copy "$device" --sdlba=9000 --slbs=4224 --blocks=7 >&2
dd if="$device" bs=4k iflag=direct skip=9000 count=8 status=none | cmp - <(tail -c +524289 /run/data | head -c 32768) && echo "copied"
before=$(json '.used_bytes' volume show tank/a)
blkdiscard "$device"
(($(json '.used_bytes' volume show tank/a) < before)) && echo "discarded space is given back"

make_fs ext4 "$device"
mount -t ext4 "$device" /mnt
cp /run/data /mnt/data

p export create tank/xfs --nvme-tcp 127.0.0.1:4420 --host "$HOST" >&2
wait_for 20 is_there 2
make_fs xfs "$(node 2)"
mkdir -p /xfs
mount -t xfs "$(node 2)" /xfs
fio --name=xfs --directory=/xfs --ioengine=libaio --direct=1 --iodepth=8 --rw=randwrite --bs=4k-64k --blockalign=4k --serialize_overlap=1 --size=8m \
    --verify=crc32c --do_verify=1 --verify_fatal=1 --randseed=9 --minimal >/run/fio || fail "fio over XFS"
cp /run/data /xfs/data

# Another namespace comes, is seen, grows, and goes.
p export create tank/b --nvme-tcp 127.0.0.1:4420 --allow-any-host --block-size 512 >&2
wait_for 20 is_there 3
blockdev --getss "$(node 3)"
p volume resize tank/b --size 48MiB --yes >&2
size() { [[ $(blockdev --getsize64 "$(node 3)") == "$1" ]]; }
wait_for 20 size 50331648
echo "a namespace came and grew"
id=$(json '.exports[] | select(.volume == "tank/b") | .id' export list)
p export delete "$id" --yes >&2
gone() { ! is_there 3; }
wait_for 20 gone
echo "and went"

# The daemon is killed: the host connects again, and what it asked for waits.
{ cp /run/data /mnt/more && cp /run/data /xfs/more; } &
writer=$!
stop_daemon KILL
start_daemon
wait "$writer"
sync -f /mnt /xfs
cmp /run/data /mnt/data && cmp /run/data /mnt/more && echo "a file system outlives a killed daemon"
cmp /run/data /xfs/data && cmp /run/data /xfs/more && echo "and so does XFS"
umount /mnt /xfs
check_fs ext4 "$device" >&2 && check_fs xfs "$(node 2)" >&2 && echo "and both are clean"
nvme list-subsys >&2
nvme disconnect -n "$NQN" >&2
json '[.exports[] | "\(.protocol) \(.nsid) \(.connection_count)"] | join(", ")' export list
echo "left after a scrub: $(json .job.findings.mismatch_count group scrub tank --wait)"
