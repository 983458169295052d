# `purlind --passthrough` over a namespace with two controllers: it is reached by the character device of the multipath device, and when
# controllers are reset and one goes under load, without redundancy above it, nothing is noticed. Namespaces with metadata or protection information are reached
# by their block devices.
# drives: 4096+paths 4096+metadata 4096+protection
# mib: 96
# limit: 180
modprobe ublk_drv
all_there() { [[ -b /dev/$(basename /sys/class/nvme-subsystem/*/nvme*n[0-9]*) && -b $(drive 2) && -b $(drive 3) ]]; }
wait_for 60 all_there
HEAD=/dev/$(basename /sys/class/nvme-subsystem/*/nvme*n[0-9]*)
shown() { json "$2" drive show "$1"; }
errors() { json '[.members[].errors | to_entries[].value] | add' group show tank; }

start_daemon --passthrough
p group create tank --level raid0 --drives "$HEAD,$(drive 2),$(drive 3)" --yes >&2
p volume create tank/v --size 64MiB >&2
p export create tank/v --ublk >&2
p drive show "$HEAD" >&2
node=$(shown "$HEAD" .passthrough.node)
folder() { dirname "$(readlink -f "$1")"; }
[[ -c $node && $(folder "/sys/class/nvme-generic/$(basename "$node")") == "$(folder "/sys/block/$(basename "$HEAD")")" ]] || fail "node $node"
echo "the namespace with two paths: by the character device of both"
echo "metadata: $(shown "$(drive 2)" .passthrough.refusal)"
echo "protection: $(shown "$(drive 3)" .passthrough.refusal)"

fio --name=load --filename=/dev/purlin/tank/v --ioengine=libaio --direct=1 --rw=randrw --bs=4k --iodepth=8 --size=32M --time_based --runtime=10 \
    --verify=crc32c --verify_fatal=1 --minimal >/run/load &
load=$!
was=$(shown "$HEAD" .passthrough.command_count)
busy() { (($(shown "$HEAD" .passthrough.command_count) > was + 100)); }
wait_for 30 busy
# While both are reset there is no path, and commands are refused.
mapfile -t paths < <(grep -l '^PURLIN1' /sys/class/nvme/nvme*/serial | xargs -n 1 dirname)
for _ in {1..5}; do
    resets=()
    for path in "${paths[@]}"; do
        echo 1 >"$path/reset_controller" &
        resets+=($!)
    done
    # One that is still being reset refuses another.
    wait "${resets[@]}" || true
    sleep 0.2
done
echo "controllers were reset: $(errors) errors"
echo 1 >"$(readlink -f "${paths[0]}/device")/remove"
wait "$load" || fail "fio without a path: $(cat /run/load)"
echo "a path went: $(shown "$HEAD" .drive.state), $(errors) errors"
was=$(shown "$HEAD" .passthrough.command_count)
fio --name=verify --filename=/dev/purlin/tank/v --ioengine=libaio --direct=1 --rw=randwrite --bs=4k --iodepth=8 --size=32M --verify=crc32c \
    --verify_fatal=1 --do_verify=1 --minimal >/run/fio || fail "fio by the other path: $(cat /run/fio)"
busy || fail "no commands by the other path"
echo "commands go by the other path"
stop_daemon TERM
