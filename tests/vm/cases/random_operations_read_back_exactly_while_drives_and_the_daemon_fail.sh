# Random reads, writes, maps, holes, zeroes and truncations, through the page cache and past it, compared with a copy in memory: on a
# block device itself, and on ext4, XFS and btrfs over block devices, while a drive is pulled and the daemon is killed.
# drives: 4096 4096 4096 4096
# mib: 400
# limit: 400
modprobe ublk_drv
start_daemon
p group create tank --level raid6 --drives "$(drives 1 4)" --yes >&2
p volume create tank/raw --size 16MiB >&2
p volume create tank/fs --size 340MiB >&2
p export create tank/raw --ublk --block-size 512 >&2
p export create tank/fs --ublk >&2

# exercise NAME PATH SEED: beside it the daemon is killed, twice.
exercise() {
    local load
    exerciser --ops 1200 --seed "$3" --size 4194304 "$2" >/run/exercised &
    load=$!
    for _ in 1 2; do
        sleep 0.7
        stop_daemon KILL
        start_daemon
    done
    wait "$load" || fail "$1"
    sed "s|.* on .*:|$1:|" /run/exercised
}
exercise "the device" /dev/purlin/tank/raw 1
# on FILESYSTEM SEED
on() {
    make_fs "$1" /dev/purlin/tank/fs >&2
    mount -t "$1" /dev/purlin/tank/fs /mnt
    exercise "$1" /mnt/file "$2"
    umount /mnt
    check_fs "$1" /dev/purlin/tank/fs >&2
}
on ext4 2
host unplug 3
on xfs 3
on btrfs 4
exercise "the device, without a drive" /dev/purlin/tank/raw 5
dmesg | grep -iE 'ublkb.*(error|critical)' >&2 && fail "the kernel saw an error"
json '[.members[].state] | sort | join(" ")' group show tank
