# A volume that is a block device grows while a file system on it is mounted and fio writes and verifies: also where the daemon is killed
# after the volume has grown and before the kernel was told, and where it is also exported over NVMe/TCP and NBD. Number and name stay.
# kernel: 6.18
# drives: 4096 4096 4096 4096
# limit: 600
modprobe -a ublk_drv nvme-tcp
uname -r | grep -o '^[0-9]*\.[0-9]*'
start_daemon
p group create tank --level raid6 --drives "$(drives 1 4)" --yes >&2
p volume create tank/v --size 32MiB >&2
p export create tank/v --ublk >&2
p export create tank/v --nbd "unix:$NBD" >&2
p export create tank/v --nvme-tcp 127.0.0.1:4420 --allow-any-host >&2
NQN=$(json '.exports[] | select(.nqn) | .nqn' export list)
ID=11111111-2222-4333-8444-555555555555
nvme connect -t tcp -a 127.0.0.1 -s 4420 -n "$NQN" --hostnqn "nqn.2014-08.org.nvmexpress:uuid:$ID" --hostid "$ID" \
    --ctrl-loss-tmo 60 --reconnect-delay 1 >&2
device=/dev/purlin/tank/v
node=$(readlink $device)
# What it is known by to the kernel.
identity() { stat -L -c '%n %t:%T' $device; }
known=$(identity)
mib() { echo $(($(blockdev --getsize64 "$1") >> 20)); }
is() { [[ $(mib "$1") == "$2" ]]; }
volume_mib() { json '.size_bytes / 1048576' volume show tank/v; }
remote_is() {
    local path
    for path in /sys/class/nvme-subsystem/*/nvme*n1; do
        [[ $(<"${path%/*}/subsysnqn") == "$NQN" ]] && is "/dev/${path##*/}" "$1" && return
    done
    return 1
}
make_fs ext4 $device
mount -t ext4 $device /mnt
# In KiB.
room() { df -k /mnt | awk 'END { print $2 }'; }
fio --name=load --directory=/mnt --ioengine=libaio --direct=1 --iodepth=8 --rw=randrw --bs=4k --size=12m --time_based --runtime=900 \
    --verify=crc32c --verify_backlog=64 --verify_fatal=1 --fsync=64 --randseed=3 --eta=never --output=/run/fio &
load=$!

p volume resize tank/v --size 64MiB >&2
echo "volume $(volume_mib) MiB, device $(mib $node) MiB, mounted"
before=$(room)
resize2fs $device >&2
(($(room) > before + 28 * 1024)) && echo "ext4 uses it"
file() { head -c $((20 << 20)) /dev/urandom | tee "/mnt/$1" | sha256sum | cut -d' ' -f1; }
first=$(file first)

# Between the two the daemon looks how large the device is. There it waits now, as nobody writes to a FIFO.
mkfifo /run/fifo
mount --bind /run/fifo "/sys/block/${node#/dev/}/size"
p volume resize tank/v --size 96MiB >&2 2>&1 &
resizing=$!
grown() { [[ $(volume_mib) == 96 ]]; }
wait_for 60 grown
stop_daemon KILL
wait $resizing && fail "the answer came before the device was told"
umount "/sys/block/${node#/dev/}/size"
echo "killed: device $(mib $node) MiB"
start_daemon
echo "started: volume $(volume_mib) MiB, device $(mib $node) MiB"
resize2fs $device >&2
second=$(file second)

# Killed at any moment of it.
for round in 1 2 3 4 5 6; do
    p volume resize tank/v --size $((96 + round * 4))MiB >&2 2>&1 &
    resizing=$!
    sleep 0.$((round * 2 - 1))
    stop_daemon KILL
    wait $resizing || true
    start_daemon
    [[ $(volume_mib) == "$(mib $node)" ]] || fail "round $round: volume $(volume_mib) MiB, device $(mib $node) MiB"
done
echo "killed $round times: both always have one size"

# Where the kernel does not do it, the volume has grown, and asking again is all.
mount --bind "$SOCKET" "/sys/block/${node#/dev/}/size"
p volume resize tank/v --size 128MiB
umount "/sys/block/${node#/dev/}/size"
echo "volume $(volume_mib) MiB, device smaller: $(($(mib $node) < 128))"
p volume resize tank/v --size 128MiB >&2
echo "again: device $(mib $node) MiB"
resize2fs $device >&2

fio_ends "$load" /run/fio
echo "fio verified everything"
[[ $(identity) == "$known" ]] && echo "the device is the same"
wait_for 60 remote_is 128
echo "NVMe host: 128 MiB"
nbd_attach tank/v
echo "NBD client: $(mib /dev/nbd0) MiB"
nbd_detach
sync
echo 3 >/proc/sys/vm/drop_caches
[[ $(sha256sum </mnt/first) == "$first"* && $(sha256sum </mnt/second) == "$second"* ]] && echo "what was written to the new space is there"
p volume resize tank/v --size 32MiB --yes 2>&1 && fail "it has shrunk"
dmesg | grep -iE "${node#/dev/}.*(error|critical)|EXT4-fs error|Aborting journal" >&2 && fail "the kernel saw an error"
umount /mnt
check_fs ext4 $device >&2 && echo "e2fsck finds nothing wrong"

p export delete "$(json '.exports[] | select(.protocol == "ublk") | .id' export list)" --yes >&2
p export create tank/v --ublk --read-only --block-size 512 >&2
p volume resize tank/v --size 132MiB >&2
echo "read-only: $(blockdev --getro $device), $(mib $device) MiB"
p group scrub tank --wait >&2
echo "a scrub finds $(json '.job.findings.mismatch_count' group scrub tank --status)"
