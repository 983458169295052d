# A compressed thin volume over ublk, NBD and NVMe/TCP, with the kernel as the client of each: what fio writes over one of them it verifies over the
# others, also after the daemon was killed. The NVMe namespace says that it is thin, what its quota is and how much it has.
# quick: thin volumes
# drives: 4096 4096 4096 4096
# limit: 200
modprobe ublk_drv
modprobe nvme-tcp
ip link set lo up 2>/dev/null || ifconfig lo up
start_daemon
p group create tank --level raid6 --drives "$(drives 1 4)" --yes >&2
p volume create tank/v --thin --size 1GiB --compress lz4 --quota 64MiB >&2
p export create tank/v --ublk >&2
p export create tank/v --nbd "unix:$NBD" >&2
p export create tank/v --nvme-tcp 127.0.0.1:4420 --allow-any-host >&2
HOST=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555
NQN=$(json '[.exports[].nqn | values][0]' export list)

# The three have the same size, and their own page caches, which fio goes past.
device_of() {
    case $1 in
    ublk) echo /dev/purlin/tank/v ;;
    nbd) echo /dev/nbd0 ;;
    nvme) for path in /sys/class/nvme-subsystem/*/nvme*n1; do
        [[ $(<"${path%/*}/subsysnqn") == "$NQN" ]] && echo "/dev/$(basename "$path")"
    done ;;
    esac
}
is_there() { [[ -b $(device_of "$1") ]]; }
attach() {
    nbd_attach tank/v
    nvme connect -t tcp -a 127.0.0.1 -s 4420 -n "$NQN" --hostnqn "$HOST" --hostid "${HOST##*:}" -i 2 --ctrl-loss-tmo 60 --reconnect-delay 1 >&2
    for client in ublk nbd nvme; do wait_for 20 is_there $client; done
}
# fio over CLIENT with SEED, at 512 MiB: half of each buffer compresses.
over() {
    fio --name=v --filename="$(device_of "$1")" --ioengine=libaio --direct=1 --iodepth=8 --rw=randwrite --bsrange=4k-64k --blockalign=4k \
        --serialize_overlap=1 --offset=512m --size=12m --io_size=12m --buffer_compress_percentage=50 --verify=crc32c --verify_fatal=1 \
        --randseed="$2" --minimal "${@:3}" >/run/fio || { cat /run/fio >&2; fail "fio over $1"; }
}
attach
seed=0
for writer in ublk nbd nvme; do
    seed=$((seed + 1))
    over $writer $seed --do_verify=1 --end_fsync=1
    for reader in ublk nbd nvme; do over $reader $seed --verify_only=1; done
    echo "written over $writer, verified over all"
done
blkdiscard -o 0 -l $((1 << 20)) /dev/purlin/tank/v
dd if=/dev/urandom of=/dev/purlin/tank/v bs=1M count=4 oflag=direct status=none
sync
nvme id-ns "$(device_of nvme)" | grep -E '^(nsze|ncap|nsfeat)' | tr -s ' '
used=$(nvme id-ns "$(device_of nvme)" | awk '$1 == "nuse" { print $3 }')
((used >= (4 << 20) / 4096 && used <= (16 << 20) / 4096)) && echo "nuse counts the blocks that were written"
{ dd if=/dev/urandom of=/dev/purlin/tank/v bs=1M seek=100 count=64 oflag=direct 2>&1 || true; } | grep -o 'No space left on device'
nvme disconnect -n "$NQN" >&2
nbd_detach
stop_daemon KILL
start_daemon
attach
for reader in ublk nbd nvme; do over $reader $seed --verify_only=1; done
echo "after a kill, verified over all"
nvme disconnect -n "$NQN" >&2
nbd_detach
p volume show tank/v >&2
