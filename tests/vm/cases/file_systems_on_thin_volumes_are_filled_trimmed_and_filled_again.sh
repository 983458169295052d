# ext4 and XFS on thin volumes, on block devices: filled to the last byte, trimmed, and filled again. Then four writers fill the pool: all get the
# no-space error, reads go on, and discards and the deletion of a volume make room.
# drives: 4096 4096 4096 4096
# mib: 400
# limit: 600
modprobe ublk_drv
start_daemon
p group create tank --level raid6 --drives "$(drives 1 4)" --yes >&2

thin_volume() {
    p volume create "tank/$1" --thin --size "$2" "${@:3}" >&2
    p export create "tank/$1" --ublk >&2
}
data_bytes() { json .thin.data_bytes group show tank; }
is_below() { (($(data_bytes) < $1)); }

thin_volume ext4 96MiB
thin_volume xfs 320MiB --compress lz4
for kind in ext4 xfs; do
    make_fs $kind /dev/purlin/tank/$kind >&2
    mkdir -p /mnt/$kind
    mount -t $kind /dev/purlin/tank/$kind /mnt/$kind
done
for round in 1 2; do
    for kind in ext4 xfs; do
        head -c 16777216 /dev/urandom >/mnt/$kind/kept
        fill /mnt/$kind
    done
    sync
    sha256sum /mnt/*/kept >/run/sums
    echo 3 >/proc/sys/vm/drop_caches
    sha256sum --check --quiet /run/sums
    full=$(data_bytes)
    ((full > 32 << 20)) || fail "$full bytes only"
    for kind in ext4 xfs; do
        rm -f /mnt/$kind/{kept,room,fill}
        sync
        fstrim /mnt/$kind
    done
    wait_for 60 is_below $((24 << 20))
    echo "round $round: filled, verified, trimmed"
done
for kind in ext4 xfs; do
    umount /mnt/$kind
    check_fs $kind /dev/purlin/tank/$kind >&2
    p export delete "$(json ".exports[] | select(.volume == \"tank/$kind\") | .id" export list)" --yes >&2
    p volume delete tank/$kind --yes >&2
done
p group show tank >&2

# Four writers on two volumes that are larger than the group.
thin_volume a 1TiB
thin_volume b 1TiB
writer() {
    local said
    said=$(dd if=/dev/urandom of="/dev/purlin/tank/$1" bs=1M seek="$2" oflag=direct conv=notrunc 2>&1) && fail "$1 is never full"
    [[ $said == *"No space left on device"* ]] || fail "$1: $said"
}
writers=()
for place in "a 0" "a 100000" "b 0" "b 500000"; do
    # shellcheck disable=SC2086
    writer $place &
    writers+=($!)
done
for pid in "${writers[@]}"; do wait "$pid" || fail "a writer"; done
echo "four writers were told that there is no space"
wait_for 30 grep -q 'the pool of thin volumes fills' /run/purlind.log && echo "the log says that the pool fills"
p group show tank >&2
dd if=/dev/purlin/tank/a of=/dev/null bs=1M count=8 iflag=direct status=none && echo "reads go on"
one() { dd if=/dev/urandom of=/dev/purlin/tank/a bs=1M count="$1" seek="$2" oflag=direct conv=notrunc status=none 2>&1; }
one 4 0 && echo "overwrites go on"
one 8 900 >&2 && fail "there is space"
blkdiscard -o 0 -l $((16 << 20)) /dev/purlin/tank/a
wait_for 30 one 8 900
echo "discarded space is used again"
p export delete "$(json '.exports[] | select(.volume == "tank/b") | .id' export list)" --yes >&2
p volume delete tank/b --yes >&2
wait_for 60 one 64 2000
echo "the space of a deleted volume is used again"
