# The bench itself: a kernel with the modules that Purlin is tried against, and NVMe drives of both block sizes with their serial
# numbers, which can be pulled, put back and replaced, and read badly where they are told to.
# drives: 4096 512 4096
modprobe -a ublk_drv nvme-tcp nvmet-tcp nvme-loop nbd raid456
for module in ublk_drv nvme nvme_tcp nvmet_tcp nvme_loop nbd raid456; do
    [[ -d /sys/module/$module ]] && echo "module $module"
done
[[ -c /dev/ublk-control ]] && echo "ublk is there"
is_there() { [[ -b $(drive "$1") ]]; }
for n in 1 2 3; do
    name=$(basename "$(drive "$n")")
    echo "drive $n: $(<"/sys/block/$name/queue/logical_block_size") bytes a block, $(<"/sys/block/$name/size") sectors"
done

device=$(drive 2)
printf 'what it had' | dd of="$device" bs=4096 conv=sync oflag=direct status=none
host unplug 2
[[ ! -e $device && -z $(drive 2) ]] && echo "drive 2 was pulled"
host plug 2
wait_for 60 is_there 2
echo "drive 2 is back with $(head -c 11 "$(drive 2)")"
host unplug 2
host replace 2
wait_for 60 is_there 2
echo "drive 2 is $(xargs <"/sys/block/$(basename "$(drive 2)")/device/serial"), with $(tr -d '\0' <"$(drive 2)" | wc -c) bytes other than zero"

reads() { dd if="$(drive 3)" of=/dev/null bs=4096 count=1 skip="$1" iflag=direct 2>/dev/null; }
host media-error 3 8192 4096
for block in 0 1 2 3; do reads $block && echo "block $block can be read" || echo "block $block cannot be read"; done
host heal 3
reads 2 && echo "healed"
