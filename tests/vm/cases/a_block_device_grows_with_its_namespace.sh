# A namespace of another machine that is a block device here: it grows over there while a file system on it is mounted, and grows here; also where this
# machine's daemon is not there meanwhile.
# kernel: 6.18
# drives: 4096 4096
# limit: 300
modprobe ublk_drv
declare -A daemons
# The machine with the volume, and the one that connects.
start() { STATE=/run/$1 SOCKET=/run/$1.sock; start_daemon; daemons[$1]=$DAEMON; }
stop() { DAEMON=${daemons[$1]}; stop_daemon "$2"; }
shelf() { purlin --socket /run/shelf.sock "$@"; }
near() { purlin --socket /run/near.sock "$@"; }

start shelf
shelf group create tank --level raid1 --drives "$(drives 1 2)" --yes >&2
shelf volume create tank/v --size 32MiB >&2
shelf export create tank/v --nvme-tcp 127.0.0.1:4420 --allow-any-host --nsid 7 >&2
NQN=$(shelf export list -o json | jq -r '.exports[0].nqn')
start near
near nvme connect 127.0.0.1 "$NQN" --nsid 7 --ublk --name disk >&2
DEVICE=/dev/purlin/disk/nvme
is() { [[ $(blockdev --getsize64 $DEVICE) == $(($1 << 20)) ]]; }
make_fs ext4 $DEVICE
mount -t ext4 $DEVICE /mnt
file() { head -c $((20 << 20)) /dev/urandom | tee "/mnt/$1" | sha256sum | cut -d' ' -f1; }

shelf volume resize tank/v --size 64MiB >&2
wait_for 60 is 64
echo "64 MiB over there, and here: $(near import show disk -o json | jq '.namespace.size_bytes / 1048576')"
resize2fs $DEVICE >&2
first=$(file first)

stop near KILL
shelf volume resize tank/v --size 96MiB >&2
is 64 && echo "96 MiB over there, and nobody here"
start near
wait_for 60 is 96
echo "96 MiB here"
resize2fs $DEVICE >&2
second=$(file second)
sync
echo 3 >/proc/sys/vm/drop_caches
[[ $(sha256sum </mnt/first) == "$first"* && $(sha256sum </mnt/second) == "$second"* ]] && echo "what was written to the new space is there"
umount /mnt
check_fs ext4 $DEVICE >&2 && echo "e2fsck finds nothing wrong"
