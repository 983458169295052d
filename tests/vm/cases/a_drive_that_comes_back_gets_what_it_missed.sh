# A member is pulled, the group is written to, and the member comes back: it takes its place by itself and gets what it missed and no
# more. An empty drive in its place is only offered. One that is torn out in the middle of what it was asked costs no request.
# quick: hot plug
# drives: 4096 4096 4096 4096
# mib: 64
# limit: 400
modprobe ublk_drv
start_daemon
p group create tank --level raid6 --drives "$(drives 1 4)" --yes >&2
p volume create tank/v --size 32MiB >&2
p export create tank/v --ublk >&2
DEVICE=/dev/purlin/tank/v

# write FROM MIB-OFFSET MIB: lines of numbers; read_back of the same.
write() { dd of=$DEVICE bs=1M oflag=direct iflag=fullblock seek="$2" count="$3" status=none < <(seq "$1" 99999999); }
read_back() {
    cmp -n $(($3 << 20)) <(seq "$1" 99999999) <(dd if=$DEVICE bs=1M iflag=direct skip="$2" count="$3" status=none) || fail "other content"
}
health() { [[ $(json .health group show tank) == "$1" ]]; }
has_no_jobs() { [[ $(json '[.jobs[] | select(.state == "running")] | length' group show tank) == 0 ]]; }
whole_again() { health optimal && has_no_jobs; }
scrub() {
    p group scrub tank --wait >&2
    [[ $(json '.job.findings.mismatch_count' group scrub tank --status) == 0 ]] || fail "the scrub found differences"
}

write 10000000 0 4
write 20000000 4 2
write 30000000 6 18
sync $DEVICE
sleep 1
host unplug 2
# Nobody reads or writes: only the kernel's word tells.
wait_for 5 health degraded
echo "pulled: degraded at once"
write 40000000 4 2
host plug 2
wait_for 60 whole_again
missed=$(sed -n 's/.*dirty_bytes=\([0-9]*\).*/\1/p' /run/purlind.log | tail -n 1)
[[ $missed ]] || fail "it was not recognised"
echo "measured: got at most $missed of $((12 << 20)) bytes of its own" >&2
((missed <= 3 << 20)) || fail "it got $missed bytes"
read_back 10000000 0 4
read_back 40000000 4 2
read_back 30000000 6 18
scrub
echo "back: optimal, with what it missed"

# Without having missed anything, and faster than anybody can look.
host unplug 3
host plug 3
wait_for 60 whole_again
scrub
echo "out and in: optimal"

host unplug 2
wait_for 5 health degraded
host replace 2
offered() { [[ $(json '.warnings[]' group show tank) == *"$(drive 2) is new and empty: purlin drive replace tank 1 --with $(drive 2)"* ]]; }
wait_for 20 offered
health degraded || fail "an empty drive was used unasked"
json '.drives[] | select(.role == "none") | .note' drive list
p drive replace tank 1 --with "$(drive 2)" --wait >&2
whole_again || fail "not rebuilt"
[[ $(json '[.drives[] | select(.role == "none")] | length' drive list) == 0 ]] || fail "still offered"
[[ $(json '.warnings | length' group show tank) == 0 ]] || fail "warnings"
read_back 30000000 6 18
scrub
echo "replaced on request"

# The kernel is not asked, as it is when the machine outside unplugs a drive: its registers are gone, and what is in flight is never answered. The
# kernel waits 30 s for that unless told. The port in front of the drive passes no registers on, and the drive writes to no memory.
fio --name=load --filename=$DEVICE --offset=16m --size=8m --ioengine=libaio --direct=1 --iodepth=8 --rw=randrw --bs=4k --time_based --runtime=600 \
    --verify=crc32c --verify_backlog=64 --verify_fatal=1 --randseed=9 --eta=never --output=/run/fio &
load=$!
sleep 1
torn=/sys/block/$(basename "$(drive 3)")
echo 4000 >$torn/queue/io_timeout
torn=$(readlink -f $torn/device/device)
registers() { dd of="$1/config" bs=1 seek=4 conv=notrunc status=none; }
dd if="${torn%/*}/config" of=/run/port bs=1 skip=4 count=2 status=none
printf '\4\0' | registers "${torn%/*}"
printf '\0\0' | registers "$torn"
wait_for 40 health degraded
moved() { tr -s ' ' <"/sys/block/$(basename "$(readlink $DEVICE)")/stat" | sed 's/^ //' | cut -d' ' -f5; }
before=$(moved)
more() { (($(moved) > before + 100)); }
wait_for 20 more
host unplug 3
registers "${torn%/*}" </run/port
host plug 3
wait_for 60 whole_again
fio_ends $load /run/fio
read_back 40000000 4 2
scrub
echo "torn out under load: verified, and optimal again"
p drive list >&2
stop_daemon TERM
