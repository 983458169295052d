# A namespace of another machine as a block device (`purlin nvme connect --ublk`): of another daemon, with a file system on it and fio that verifies,
# while either daemon is killed and stopped; what is asked while the other machine is away waits; and what is refused.
# drives: 4096 4096
# limit: 600
modprobe ublk_drv
ip link set lo up 2>/dev/null || ifconfig lo up
declare -A daemons
# The machine with the volume, and the one that connects.
start() { STATE=/run/$1 SOCKET=/run/$1.sock; start_daemon; daemons[$1]=$DAEMON; }
stop() { DAEMON=${daemons[$1]}; stop_daemon "$2"; }
shelf() { purlin --socket /run/shelf.sock "$@"; }
near() { purlin --socket /run/near.sock "$@"; }
refused() { "$@" >/run/refused 2>&1 && fail "not refused: $*"; cat /run/refused >&2; }

start shelf
shelf group create tank --level raid1 --drives "$(drives 1 2)" --yes >&2
shelf volume create tank/v --size 64MiB >&2
shelf export create tank/v --nvme-tcp 127.0.0.1:4420 --allow-any-host --nsid 7 >&2
NQN=$(shelf export list -o json | jq -r '.exports[0].nqn')
start near
near nvme connect 127.0.0.1 "$NQN" --nsid 7 --ublk --name disk | sed "s/$NQN/NQN/"
DEVICE=/dev/purlin/disk/nvme
NODE=$(readlink $DEVICE)
echo "$(blockdev --getsize64 $DEVICE) bytes in blocks of $(blockdev --getss $DEVICE), read-only: $(blockdev --getro $DEVICE)"

refused near nvme connect 127.0.0.1 "$NQN" --nsid 7 --ublk
grep -o 'imported already, as "disk"' /run/refused
refused near group create own --level raid1 --drives "nvme-tcp://127.0.0.1/$NQN?nsid=7,mem:a:64MiB" --yes
grep -o 'in use by this daemon already' /run/refused
refused near group create own --level raid1 --drives "$DEVICE,mem:a:64MiB" --yes --wipe-foreign
grep -o 'a block device of this daemon itself' /run/refused
refused near export create disk/nvme --nbd unix:/run/n.sock
grep -o 'offered as a block device only' /run/refused
refused shelf nvme connect 127.0.0.1 "$NQN" --nsid 7 --ublk
grep -o 'served by this daemon itself' /run/refused

# Durable, zeroed and given back over there.
head -c 1048576 /dev/urandom >/run/data
dd if=/run/data of=$DEVICE bs=64k oflag=direct,dsync seek=256 status=none
dd if=$DEVICE bs=64k iflag=direct skip=256 count=16 status=none | cmp - /run/data && echo "durable writes are there"
blkdiscard -z -o 16777216 -l 524288 $DEVICE
dd if=$DEVICE bs=64k iflag=direct skip=256 count=8 status=none | cmp - <(head -c 524288 /dev/zero) && echo "zeroed"
used() { shelf volume show tank/v -o json | jq .used_bytes; }
before=$(used)
blkdiscard $DEVICE
(($(used) < before)) && echo "discarded space is given back"

make_fs ext4 $DEVICE
mount -t ext4 $DEVICE /mnt
fio --name=load --directory=/mnt --ioengine=libaio --direct=1 --iodepth=8 --rw=randrw --bs=4k --size=16m --time_based --runtime=600 \
    --verify=crc32c --verify_backlog=64 --verify_fatal=1 --fsync=64 --randseed=3 --eta=never --output=/run/fio &
load=$!
done_now() { cut -d' ' -f1,5 <(tr -s ' ' <"/sys/block/$(basename "$NODE")/stat" | sed 's/^ //'); }
# moves WHAT: requests are answered again.
moves() {
    kill -0 "$load" 2>/dev/null || { cat /run/fio >&2; fail "fio ended: $1"; }
    local before
    before=$(done_now)
    more() { [[ $(done_now) != "$before" ]]; }
    wait_for 120 more
    echo "$1: it goes on"
}
moves "at first"
for round in 1 2 3; do
    stop shelf KILL
    start shelf
    moves "the other machine's daemon was killed, round $round"
done
stop near KILL
start near
moves "this machine's daemon was killed"
stop near TERM
start near
moves "this machine's daemon was stopped"
near upgrade >&2
moves "this machine's daemon was upgraded"
refused near nvme disconnect "$NQN"
grep -o 'is in use: mounted at /mnt' /run/refused
fio_ends "$load" /run/fio
echo "fio verified everything"
dmesg | grep -iE 'ublkb.*(error|critical)|EXT4-fs error|Aborting journal' >&2 && fail "the kernel saw an error"
umount /mnt
check_fs ext4 $DEVICE >&2 && echo "e2fsck finds nothing wrong"

# What is asked while the other machine is away waits, over a stop and a start of this machine's daemon too.
stop shelf TERM
dd if=/run/data of=$DEVICE bs=64k oflag=direct conv=notrunc seek=256 status=none &
writer=$!
asked() { (($(tr -s ' ' <"/sys/block/$(basename "$NODE")/stat" | sed 's/^ //' | cut -d' ' -f9) > 0)); }
wait_for 30 asked
stop near TERM
start near
kill -0 "$writer" || fail "the write did not wait"
[[ $(near nvme list -o json | jq -r '.devices[0].health') == failed ]] && echo "out of reach, and listed so"
refused near nvme disconnect "$NQN"
grep -o 'or give up what was not written yet' /run/refused
start shelf
wait "$writer" || fail "the write failed"
dd if=$DEVICE bs=64k iflag=direct skip=256 count=16 status=none | cmp - /run/data && echo "what waited is written"
is_optimal() { [[ $(near nvme list -o json | jq -r '.devices[0].health') == optimal ]]; }
wait_for 30 is_optimal
near nvme list >&2

# Given up while the other machine is away: only by force.
stop shelf KILL
dd if=/run/data of=$DEVICE bs=64k oflag=direct conv=notrunc count=1 status=none 2>/run/dd &
writer=$!
wait_for 30 asked
is_away() { [[ $(near nvme list -o json | jq -r '.devices[0].health') == failed ]]; }
wait_for 30 is_away
refused near import forget disk
grep -o 'or give up what was not written yet' /run/refused
# Whoever writes has the device open: only then may the kernel say so.
near nvme disconnect "$NQN" --force >&2
! wait "$writer" || fail "the write was answered"
[[ ! -e $NODE && ! -e $DEVICE ]] && echo "gone"
start shelf
near nvme connect 127.0.0.1 "$NQN" --nsid 7 --ublk >&2
[[ -b $(readlink /dev/purlin/remote1/nvme) ]] && echo "and connected again"
near nvme disconnect --all >&2
is_let_go() { [[ $(near nvme list -o json | jq ".devices | length") == 0 && ! -e /run/near/remote-drives ]]; }
wait_for 30 is_let_go
echo "and nothing is left"
