# A Linux md array with an ext4 file system, one member missing, imported and made a block device of the kernel: mounted, read byte by
# byte, over a daemon that is killed, one that is stopped in order and one that is upgraded. Nothing can be written. It goes when it is not in use.
# drives: 512 512 512
# mib: 32
# limit: 400
export MDADM_NO_UDEV=1
modprobe -a raid456 ublk_drv
echo 1000000 | tee /proc/sys/dev/raid/speed_limit_min >/proc/sys/dev/raid/speed_limit_max
members=("$(drive 1)" "$(drive 2)" "$(drive 3)")
mdadm --create /dev/md0 --run --quiet --assume-clean --level=raid5 --raid-devices=3 --chunk=64 "${members[@]}" >&2
# Blocks of 1 KiB: it could not be mounted from a device with blocks of 4096.
mkfs.ext4 -q -b 1024 /dev/md0
mount -t ext4 /dev/md0 /mnt
dd if=/dev/urandom of=/mnt/file bs=1M count=24 status=none
sum=$(sha256sum </mnt/file)
umount /mnt
written=$(blockdev --getsize64 /dev/md0)
mdadm --stop /dev/md0 >&2

start_daemon
p group import-md --name old --drives "${members[0]},${members[2]}" >&2
p export create old/md --ublk >&2
DEVICE=/dev/purlin/old/md
number() { basename "$(readlink "$DEVICE")"; }
(($(blockdev --getsize64 $DEVICE) == written)) || fail "it has another size"
(($(blockdev --getro $DEVICE) == 1)) || fail "it can be written to"
(($(blockdev --getss $DEVICE) == 512)) || fail "its blocks are not those of the drives"
[[ $(json '.exports[0].address' export list) == "/dev/$(number)" ]] || fail "it is not listed"
echo "a block device for reading, of the array's size and blocks"
p export create old/md --ublk 2>/run/refused && fail "a second device"
grep -o 'is the block device .* already' /run/refused >&2
! p export create old/md --nvme-tcp --allow-any-host 2>/run/refused || fail "over NVMe/TCP"
grep -o 'not over NVMe/TCP' /run/refused

mount -t ext4 -o ro,noload "$DEVICE" /mnt
# same WHAT: the file is as it was written, read from the device and not from a cache.
same() {
    echo 3 >/proc/sys/vm/drop_caches
    [[ $(sha256sum </mnt/file) == "$sum" ]] || fail "$1: another content"
    echo "$1: every byte"
}
same "degraded"
# Under way while the daemon is killed.
dd if="$DEVICE" of=/dev/null iflag=direct bs=64k status=none &
reader=$!
stop_daemon KILL
start_daemon
wait "$reader" || fail "a read failed while the daemon was killed"
same "after a kill"
stop_daemon TERM
start_daemon
same "after a stop in order"
p upgrade >&2
same "after an upgrade"
! p import forget old --force 2>/run/refused || fail "it was forgotten although it is mounted"
grep -o 'is in use: mounted at /mnt' /run/refused
! p export delete "$(json '.exports[0].id' export list)" 2>/run/refused || fail "it went although it is mounted"
umount /mnt
p export delete "$(json '.exports[0].id' export list)" >&2
[[ ! -e $DEVICE && ! -e /sys/block/ublkb0 ]] || fail "the device is still there"
echo "deleted"

# An import that cannot be read any more leaves its device waiting; whoever forgets it is rid of that, too.
p export create old/md --ublk >&2
stop_daemon KILL
host unplug 1
start_daemon
[[ $(json '.health' import show old) == failed && -e /sys/block/ublkb0 ]] || fail "it is read, or its device has gone"
p import forget old >&2
[[ ! -e /sys/block/ublkb0 ]] && echo "forgotten with its device"
host plug 1
