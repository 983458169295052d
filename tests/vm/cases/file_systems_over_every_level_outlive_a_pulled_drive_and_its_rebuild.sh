# XFS over RAID 5, ext4 over RAID 6 and btrfs over RAID 10, on block devices: a drive is pulled while fio writes and verifies, a spare
# takes its place, and the file systems' own checkers find nothing wrong.
# drives: 4096 4096 4096 4096 4096
# mib: 400
# limit: 500
modprobe ublk_drv
start_daemon

# round LEVEL MEMBERS FILESYSTEM MKFS CHECK
round() {
    local level=$1 members=$2 kind=$3 mkfs=$4 check=$5 load
    p group create tank --level "$level" --drives "$(drives 1 "$members")" --spares "$(drive $((members + 1)))" --yes >&2
    p volume create tank/v --size 360MiB >&2
    p export create tank/v --ublk >&2
    $mkfs /dev/purlin/tank/v >&2
    mount -t "$kind" /dev/purlin/tank/v /mnt
    head -c 8388608 /dev/urandom >/mnt/before
    sync /mnt/before
    sha256sum /mnt/before >/run/sums
    fio --name=load --directory=/mnt --ioengine=libaio --direct=1 --iodepth=4 --rw=randwrite --bs=4k-64k --blockalign=4k --serialize_overlap=1 --size=16m \
        --io_size=24m --verify=crc32c --do_verify=1 --verify_fatal=1 --randseed=5 --eta=never --output=/run/fio &
    load=$!
    sleep 1
    host unplug 2
    wait "$load" || { cat /run/fio >&2; fail "fio over $kind on $level"; }
    grep -q 'err= 0' /run/fio || fail "fio over $kind on $level"
    healthy() { [[ $(json .health group show tank) == optimal ]]; }
    wait_for 120 healthy
    echo 3 >/proc/sys/vm/drop_caches
    sha256sum --check --quiet /run/sums
    umount /mnt
    $check /dev/purlin/tank/v >&2
    p group show tank >&2
    echo "$kind over $level: verified, rebuilt, clean"
    p group scrub tank --wait >&2
    [[ $(json '.job.findings.mismatch_count' group scrub tank --status) == 0 ]] || fail "the scrub found differences"
    p group delete tank --yes >&2
    host plug 2
    back() { [[ $(drive 2) && -b $(drive 2) ]]; }
    wait_for 20 back
    # It was not erased: it was not there.
    dd if=/dev/zero of="$(drive 2)" bs=1M count=1 oflag=direct status=none
    dd if=/dev/zero of="$(drive 2)" bs=1M seek=399 count=1 oflag=direct status=none
}
round raid5 3 xfs "mkfs.xfs -q" "xfs_repair -n"
round raid6 4 ext4 "mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0" "e2fsck -fn"
round raid10 4 btrfs "mkfs.btrfs -q" "btrfs check --readonly"
