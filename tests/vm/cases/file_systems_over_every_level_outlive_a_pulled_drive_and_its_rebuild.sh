# XFS, ext4 and btrfs over RAID 5, RAID 6 and RAID 10, on block devices: a drive is pulled while fio writes to all three and verifies, a spare
# takes its place, they are filled until there is no room, and their own checkers find nothing wrong.
# drives: 4096 4096 4096 4096 4096
# mib: 400
# limit: 500
modprobe ublk_drv
start_daemon

# round LEVEL MEMBERS: all three over a group.
round() {
    local level=$1 members=$2 kind size
    p group create tank --level "$level" --drives "$(drives 1 "$members")" --spares "$(drive $((members + 1)))" --yes >&2
    for kind in xfs:320 ext4:96 btrfs:128; do
        size=${kind#*:} kind=${kind%:*}
        p volume create "tank/$kind" --size "${size}MiB" >&2
        p export create "tank/$kind" --ublk >&2
        make_fs $kind "/dev/purlin/tank/$kind" >&2
        mkdir -p /mnt/$kind
        mount -t $kind "/dev/purlin/tank/$kind" /mnt/$kind
        head -c 8388608 /dev/urandom >/mnt/$kind/before
    done
    sync
    sha256sum /mnt/*/before >/run/sums
    local loads=()
    for kind in xfs ext4 btrfs; do
        fio --name=load --directory=/mnt/$kind --ioengine=libaio --direct=1 --iodepth=4 --rw=randwrite --bs=4k-64k --blockalign=4k --serialize_overlap=1 \
            --size=16m --io_size=16m --verify=crc32c --do_verify=1 --verify_fatal=1 --randseed=5 --eta=never --output=/run/fio.$kind &
        loads+=($!)
    done
    sleep 1
    host unplug 2
    for load in "${loads[@]}"; do
        wait "$load" || { cat /run/fio.* >&2; fail "fio on $level"; }
    done
    [[ $(grep -l 'err= 0' /run/fio.* | wc -l) == 3 ]] || fail "fio on $level"
    healthy() { [[ $(json .health group show tank) == optimal ]]; }
    wait_for 120 healthy
    for kind in xfs ext4 btrfs; do fill /mnt/$kind; done
    sync
    echo 3 >/proc/sys/vm/drop_caches
    sha256sum --check --quiet /run/sums
    for kind in xfs ext4 btrfs; do
        umount /mnt/$kind
        check_fs $kind /dev/purlin/tank/$kind >&2
        echo "$kind over $level: verified, rebuilt, filled, clean"
    done
    p group show tank >&2
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
round raid5 3
round raid6 4
round raid10 4
