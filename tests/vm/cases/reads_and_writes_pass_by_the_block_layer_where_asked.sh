# `purlind --passthrough`: reads and writes of NVMe drives go as commands on their generic character devices, with blocks of 512 and of
# 4096 bytes, and everything a drive can do wrong looks the same: a block that cannot be read, a drive that is pulled under load and put
# back. What cannot be reached so is reached by its block device. Without the option nothing is.
# drives: 4096 512 4096 512
# mib: 96
# limit: 300
modprobe ublk_drv
DEVICE=/dev/purlin/tank/v

# block_io: reads and writes of all drives that the kernel's block layer counts; commands: those that the daemon sent past it.
block_io() {
    local n sum=0 reads writes
    for n in 1 2 3 4; do
        [[ $(drive "$n") ]] || continue
        read -r reads _ _ _ writes _ <"/sys/block/$(basename "$(drive "$n")")/stat"
        sum=$((sum + reads + writes))
    done
    echo $sum
}
shown() { json "$2" drive show "$(drive "$1")"; }
commands() {
    local n sum=0
    for n in 1 2 3 4; do sum=$((sum + $(shown "$n" '.passthrough.command_count // 0'))); done
    echo $sum
}
drive_io() { json '[.drives[].io | .read_count + .write_count] | add' drive list; }
verify() {
    fio --name=verify --filename=$DEVICE --ioengine=libaio --direct=1 --rw=randwrite --bs=4k --iodepth=16 --size=16M --verify=crc32c \
        --verify_fatal=1 --do_verify=1 --minimal "$@" >/run/fio || fail "fio: $(cat /run/fio)"
}
health() { [[ $(json .health group show tank) == "$1" ]]; }
whole_again() { health optimal && [[ $(json '[.jobs[] | select(.state == "running")] | length' group show tank) == 0 ]]; }
mismatches() { json .job.findings.mismatch_count group scrub tank --wait; }

start_daemon --passthrough
p group create tank --level raid6 --drives "$(drives 1 4)" --yes >&2
p volume create tank/v --size 32MiB >&2
p export create tank/v --ublk >&2
for n in 1 2 3 4; do
    by=$(p drive show "$(drive "$n")" | sed -n 's/^reached by *//p')
    echo "$by" >&2
    node=$(shown "$n" .passthrough.node)
    [[ -c $node && $by == "block device $(drive "$n"), reads and writes by pass-through on $node ("*" so far)" ]] || fail "drive $n: $by"
    # The same controller has both, whatever their numbers are.
    [[ $(readlink -f "/sys/class/nvme-generic/$(basename "$node")/device") == "$(readlink -f "/sys/block/$(basename "$(drive "$n")")/device")" ]] ||
        fail "drive $n: $node is another's"
done
echo "the drives are reached by their character devices"

verify
before="$(block_io) $(commands) $(drive_io)"
verify
after="$(block_io) $(commands) $(drive_io)"
echo "measured: block layer, commands, all: $before -> $after" >&2
# Of the drives' own counts: gathers of many pieces, large transfers and log frames may go by the block device.
read -r -a was <<<"$before"
read -r -a is <<<"$after"
by_block=$((is[0] - was[0])) passed=$((is[1] - was[1])) all=$((is[2] - was[2]))
((passed > 3000 && passed * 2 > all && by_block * 2 < all)) || fail "$passed of $all passed, $by_block by the block layer"
echo "most reads and writes pass by the block layer"
exerciser --ops 1500 --seed 1 --size 8388608 $DEVICE | sed 's|.* on .*:|the device:|'

# A block that cannot be read.
printf 'block %d is here\n' {1..256} | dd bs=4096 cbs=4096 conv=block of=/run/want status=none
dd if=/run/want of=$DEVICE bs=64k oflag=direct conv=fsync status=none
where() {
    dd if="$(drive "$1")" bs=1M count=32 iflag=direct status=none | tr '\0' '\n' | grep -abo 'block [0-9]* is here' |
        tail -n 1 | cut -d: -f1
}
errors() { json '[.members[].errors | "\(.read_count)/\(.write_count + .other_count)"] | join(" ")' group show tank; }
compare() { dd if=$DEVICE of=/run/got bs=64k count=16 iflag=direct status=none && cmp /run/want /run/got && echo "the client reads what it wrote"; }
echo "read errors, and others, of each drive: $(errors)"
for n in 1 2; do
    offset=$(where "$n")
    [[ $offset ]] || fail "no block of the volume was found on drive $n"
    host media-error "$n" "$offset" "$(blockdev --getss "$(drive "$n")")"
    before=$(errors)
    compare
    for _ in {1..40}; do
        [[ $(errors) == "$before" ]] || break
        sleep 0.25
        compare >/dev/null
    done
    echo "read errors, and others, of each drive: $(errors)"
    host heal "$n"
done

# Pulled under load, and back.
fio --name=load --filename=$DEVICE --ioengine=libaio --direct=1 --rw=randrw --bs=4k --iodepth=8 --size=16M --offset=8M --time_based \
    --runtime=6 --verify=crc32c --verify_fatal=1 --minimal >/run/load &
load=$!
busy() { (($(commands 2>/dev/null || echo 0) > is[1])); }
wait_for 30 busy
host unplug 3
wait_for 60 health degraded
echo "pulled under load: degraded"
wait "$load" || fail "fio under a pulled drive: $(cat /run/load)"
host plug 3
wait_for 60 whole_again
echo "back: optimal"
[[ -c $(shown 3 .passthrough.node) ]] || fail "drive 3: $(shown 3 .passthrough)"
verify
(($(shown 3 .passthrough.command_count) > 0)) || fail "drive 3 is not reached by commands any more"
echo "and reached as before"
echo "differences that a scrub finds: $(mismatches)"

# Killed, and without the option: the same data, by the block layer.
fio --name=kept --filename=$DEVICE --ioengine=libaio --direct=1 --rw=randwrite --bs=4k --iodepth=16 --size=16M --fsync=16 --verify=crc32c \
    --do_verify=0 --minimal >/dev/null
stop_daemon KILL
start_daemon
fio --name=kept --filename=$DEVICE --ioengine=libaio --direct=1 --rw=randwrite --bs=4k --iodepth=16 --size=16M --fsync=16 --verify=crc32c \
    --verify_only --verify_fatal=1 --minimal >/run/fio || fail "fio: $(cat /run/fio)"
for n in 1 2 3 4; do
    [[ $(shown $n .passthrough) == null ]] || fail "drive $n: $(shown $n .passthrough)"
    open=$(readlink "/proc/$DAEMON/fd/"* || true)
    [[ $open != */dev/ng* ]] || fail "the daemon has a character device open"
done
before="$(block_io) $(drive_io)"
verify
read -r -a was <<<"$before"
((($(block_io) - was[0]) * 2 > $(drive_io) - was[1])) || fail "not by the block layer"
echo "without the option everything goes by the block layer"
stop_daemon TERM

# Where it cannot be had: a node that is not there, and a file.
rm "/dev/ng$(basename "$(drive 4)" | sed 's/nvme//')"
start_daemon --passthrough
p drive show "$(drive 4)" | sed -n 's/^reached by *//p' >&2
[[ $(shown 4 .passthrough.node) == null && $(shown 4 .passthrough.refusal) == *"cannot be opened"* ]] || fail "drive 4: $(shown 4 .passthrough)"
(($(grep -c "no pass-through.*cannot be opened" /run/purlind.log) == 1)) || fail "the log"
verify
echo "a drive without a character device is reached by its block device: $(json .health group show tank)"
stop_daemon TERM
