# A host is promised that one logical block is written whole or not at all when the power fails (AWUPF). So blocks are as large as the
# drives write at once, unless something else is asked for, of which is warned; and what an export was made with stays, whatever drives join.
# drives: 4096 4096 512 512 512
# limit: 120
modprobe ublk_drv
modprobe nvme-tcp
ip link set lo up 2>/dev/null || ifconfig lo up
start_daemon
p group create large --level raid1 --drives "$(drives 1 2)" --yes >&2
p group create small --level raid1 --drives "$(drives 3 4)" --yes >&2
for volume in large/a large/n small/a small/n small/asked; do p volume create $volume --size 16MiB >&2; done

limit() { echo "/dev/purlin/$1: $2 $(<"/sys/block/$(basename "$(readlink "/dev/purlin/$1")")/queue/$2")"; }
for group in large small; do
    p export create $group/a --ublk >&2
    limit $group/a logical_block_size
    limit $group/a physical_block_size
done
p export create small/asked --ublk --block-size 4096 | grep '^warning'
limit small/asked logical_block_size

at=127.0.0.1:4420
for group in large small; do p export create $group/n --nvme-tcp $at --allow-any-host >&2; done
p export create small/n --nvme-tcp 127.0.0.1:4421 --allow-any-host --block-size 4096 2>&1 && fail "two block sizes of one namespace"
# blocks VOLUME: of its exports, and what `show` says of them.
blocks() {
    local id
    for id in $(json ".exports[] | select(.volume == \"$1\") | .id" export list); do
        echo "$1: $(p export show "$id" | grep -o '^blocks .*' | tr -s ' ')"
    done
}
for volume in large/a large/n small/n small/asked; do blocks $volume; done

HOST=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555
ID=11111111-2222-4333-8444-555555555555
# What the kernel is told over NVMe/TCP: AWUPF is of the controller, so of all its namespaces.
for group in large small; do
    nqn=$(json ".exports[] | select(.volume == \"$group/n\") | .nqn" export list)
    nvme connect -t tcp -a 127.0.0.1 -s 4420 -n "$nqn" --hostnqn "$HOST" --hostid "$ID" >&2
    there() { compgen -G "/sys/class/nvme-subsystem/*/nvme*n*/queue/physical_block_size" >/run/found; }
    wait_for 20 there
    namespace=$(dirname "$(head -n 1 /run/found)")
    echo "$group/n: $(nvme id-ctrl "/dev/$(basename "$(dirname "$namespace")")" | grep '^awupf' | tr -s ' '), blocks of" \
        "$(<"$namespace/logical_block_size"), whole in $(<"$namespace/physical_block_size")"
    nvme disconnect -n "$nqn" >&2
done

# A spare that writes less at once may have to take the place of a member. Exports stay as they are, which is said.
p spare add large "$(drive 5)" --yes >&2
for volume in large/a large/n; do blocks $volume; done
wait_for 20 grep -q 'a power cut may leave a block of 4096 bytes partly written' /run/purlind.log
stop_daemon KILL
start_daemon
for volume in large/a large/n small/a small/n small/asked; do blocks $volume; done
limit large/a logical_block_size
