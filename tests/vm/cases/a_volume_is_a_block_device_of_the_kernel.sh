# A volume as /dev/ublkbN: what the kernel is told of it, blocks of 512 bytes, data verified by fio, discard, zeroes, durable writes,
# read-only; refused while mounted, and gone when it is deleted.
# quick: block devices
# drives: 4096 4096 4096 4096
# limit: 120
modprobe ublk_drv
start_daemon
p group create tank --level raid5 --strip 64KiB --drives "$(drives 1 4)" --yes >&2
p volume create tank/v --size 64MiB >&2
p volume create tank/w --size 16MiB >&2
p export create tank/v --ublk --number 5 >&2
p export create tank/w --ublk --block-size 512 >&2
readlink /dev/purlin/tank/v
readlink /dev/purlin/tank/w

limit() { echo "$1: $(<"/sys/block/$1/queue/$2") $2"; }
blockdev --getsize64 /dev/ublkb5 /dev/ublkb0
for name in logical_block_size physical_block_size minimum_io_size optimal_io_size fua write_cache; do limit ublkb5 $name; done
limit ublkb0 logical_block_size
limit ublkb0 optimal_io_size
ls /sys/block/ublkb5/mq | wc -l

for device in /dev/ublkb5 /dev/ublkb0; do
    block=$(blockdev --getss $device)
    fio --name=verify --filename=$device --ioengine=libaio --direct=1 --iodepth=16 --rw=randrw --bsrange="$block"-128k --blockalign="$block" --serialize_overlap=1 \
        --size=8m --verify=crc32c --verify_fatal=1 --fsync=32 --randseed=7 --minimal >/run/fio || fail "fio on $device"
    echo "fio verifies $device in blocks of $block"
done

# Durable when answered, zeroed, and given back.
head -c 1048576 /dev/urandom >/run/data
dd if=/run/data of=/dev/ublkb5 bs=64k oflag=direct,dsync seek=256 status=none
dd if=/dev/ublkb5 bs=64k iflag=direct skip=256 count=16 status=none | cmp - /run/data && echo "durable writes are there"
blkdiscard -z -o 16777216 -l 524288 /dev/ublkb5
dd if=/dev/ublkb5 bs=64k iflag=direct skip=256 count=8 status=none | cmp - <(head -c 524288 /dev/zero) && echo "zeroed"
dd if=/dev/ublkb5 bs=64k iflag=direct skip=264 count=8 status=none | cmp - <(tail -c 524288 /run/data) && echo "the rest is there"
before=$(json '.used_bytes' volume show tank/v)
blkdiscard /dev/ublkb5
after=$(json '.used_bytes' volume show tank/v)
((after < before)) && echo "discarded space is given back"
dd if=/dev/ublkb5 bs=1M count=32 iflag=direct status=none | cmp - <(head -c 33554432 /dev/zero) && echo "and reads as zeroes"

make_fs ext4 /dev/purlin/tank/v
mount -t ext4 /dev/purlin/tank/v /mnt
p export list >&2
id=$(json '.exports[] | select(.volume == "tank/v") | .id' export list)
json '.exports[] | select(.volume == "tank/v") | "\(.protocol) \(.address) \(.uri) \(.connection_count)"' export list
refused() { p "$@" 2>&1 && fail "not refused: $*"; true; }
refused export delete "$id" --yes
refused group stop tank --force
# This kernel is 6.12.
refused volume resize tank/v --size 96MiB
refused volume resize tank/v --size 32MiB --yes
refused export create tank/v --ublk
echo hello >/mnt/hello
umount /mnt
p export delete "$id" --yes >&2
[[ ! -e /dev/ublkb5 && ! -e /dev/ublkc5 && ! -e /dev/purlin/tank/v ]] && echo "the device is gone"
p export create tank/v --ublk --number 5 --read-only >&2
mount -t ext4 -o ro,noload /dev/purlin/tank/v /mnt
cat /mnt/hello
umount /mnt
dd if=/run/data of=/dev/ublkb5 bs=4k count=1 oflag=direct 2>/dev/null || echo "read-only"
# A number that another daemon has.
mine=$DAEMON
STATE=/run/other SOCKET=/run/other.sock
start_daemon
p group create lake --level raid0 --drives mem:a:64MiB,mem:b:64MiB --yes >&2
p volume create lake/v --size 16MiB >&2
refused export create lake/v --ublk --number 5
p export create lake/v --ublk >&2
echo "another daemon's device: $(readlink /dev/purlin/lake/v)"
p group delete lake --yes >&2
stop_daemon TERM
DAEMON=$mine STATE=/run/state SOCKET=/run/purlind.sock
p group stop tank >&2
[[ ! -e /dev/ublkb5 && ! -e /dev/ublkb0 && ! -e /dev/purlin/tank ]] && echo "the group is stopped, and its devices are gone"
