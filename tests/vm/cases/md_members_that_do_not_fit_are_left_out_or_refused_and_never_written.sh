# Members of Linux md arrays that are stale, spare, of another array, of metadata that are not read, or in use are left out or refused
# with the reason; an array that lost power while it was degraded is refused unless that was consented to; an import comes back with
# the daemon after kill -9; and no byte of any member differs afterwards.
# drives: 4096
# mib: 32
export MDADM_NO_UDEV=1
modprobe -a raid0 raid1 raid10 raid456 ext4
modprobe brd rd_nr=7 rd_size=6144
md() { mdadm --quiet "$@" >&2; }
# What differs from run to run.
plain() { sed -E "s/[0-9a-f]{8}(:[0-9a-f]{8}){3}/UUID/g; s/uuid [0-9a-f-]{36}/uuid .../g; s/seen [0-9]+ events, the newest [0-9]+/seen N events, the newest M/; s|$(drive 1)|NVME|g"; }
refused() { if p "$@" >/run/said 2>&1; then fail "$* was not refused"; else plain </run/said; fi; }

# A RAID 5 with a spare, of which one member missed what was written last.
md --create /dev/md0 --run --level=5 --raid-devices=3 --spare-devices=1 --chunk=64 --name=home:old /dev/ram{0,1,2,3}
mdadm --wait /dev/md0 >&2 || true
md --stop /dev/md0
md --assemble /dev/md0 --run /dev/ram0 /dev/ram1
size=$(blockdev --getsize64 /dev/md0)
head -c "$size" /dev/urandom >/run/written
dd if=/run/written of=/dev/md0 bs=64k conv=fsync status=none
md --stop /dev/md0
# One that loses its power while it is degraded and written to: a copy of its drives, taken then.
md --create /dev/md1 --run --level=5 --raid-devices=3 --chunk=64 --name=home:torn --assume-clean /dev/ram4 /dev/ram5 missing
echo 0 >/sys/block/md1/md/safe_mode_delay
dd if=/dev/urandom of=/dev/md1 bs=4k count=1 oflag=direct status=none
for n in 4 5; do dd if=/dev/ram$n of=/run/torn$n bs=1M status=none; done
md --stop /dev/md1
mdadm --zero-superblock /dev/ram4 /dev/ram5 >&2
# One of old metadata, and no array at all.
md --create /dev/md2 --run --level=1 --raid-devices=2 --metadata=0.90 --assume-clean /dev/ram4 missing
md --stop /dev/md2
mkfs.ext4 -q "$(drive 1)" >&2

all=(/dev/ram{0,1,2,3,4} "$(drive 1)" /run/torn4 /run/torn5)
sums() { sha256sum "${all[@]}"; }
sums >/run/before
start_daemon

echo "--- what there is"
p group import-md --drives "/dev/ram0,/dev/ram1,/dev/ram2,/dev/ram3,/dev/ram4,$(drive 1)" --dry-run | plain | grep -v '^made\|^updated\|events$'
echo "--- in use, stale, not stopped cleanly"
mount -t ext4 "$(drive 1)" /mnt -o ro,noload
refused group import-md --drives "$(drive 1),/dev/ram0"
umount /mnt
md --assemble /dev/md0 --readonly /dev/ram0 /dev/ram1
refused group import-md --drives /dev/ram0,/dev/ram1
md --stop /dev/md0
refused group import-md --drives /dev/ram1,/dev/ram2
refused group import-md --drives /run/torn4,/run/torn5
p group import-md --drives /run/torn4,/run/torn5 --allow-inconsistent | plain
p import forget torn

echo "--- read, and read again after kill -9"
p group import-md --drives "/dev/ram0,/dev/ram1,/dev/ram2" >&2
p export create old/md --nbd "unix:$NBD" --read-only >&2
nbd_attach old/md
cmp -n "$size" /dev/nbd0 /run/written && echo "every byte"
if dd if=/run/written of=/dev/nbd0 bs=4k count=1 oflag=direct status=none 2>/dev/null; then fail "it was written to"; fi
nbd_detach
stop_daemon KILL
start_daemon
refused group import-md --drives /dev/ram0 --name again
nbd_attach old/md
cmp -n "$size" /dev/nbd0 /run/written && echo "every byte"
nbd_detach
p import list
p import forget old --force
p import list
sums >/run/after
cmp /run/before /run/after && echo "no byte of any drive was changed"
