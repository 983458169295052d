# Reservations over NVMe/TCP with the kernel's initiator and nvme-cli: two hosts, whose names and identifiers are told apart. What one
# has reserved is kept from the other, reported, preempted and released; and what persists outlives a killed daemon.
# drives: 4096 4096 4096
# limit: 240
# For one kernel, two controllers of a subsystem are two paths of one host, whatever they say who they are: without its multipath
# each has a device of its own.
modprobe -r nvme
modprobe -r nvme_core
modprobe nvme_core multipath=0
modprobe nvme
modprobe nvme-tcp
has_drives() { [[ -n $(drive 1) && -n $(drive 2) && -n $(drive 3) ]]; }
wait_for 30 has_drives
ip link set lo up 2>/dev/null || ifconfig lo up
start_daemon
p group create tank --level raid5 --strip 64KiB --drives "$(drives 1 3)" --yes >&2
p volume create tank/a --size 32MiB >&2
p export create tank/a --nvme-tcp 127.0.0.1:4420 --allow-any-host >&2
NQN=$(json '.exports[0].nqn' export list)

# id N: the identifier of host N. connect N: host N connects, with a controller of its own.
id() { echo "$1$1$1$1$1$1$1$1-2222-4333-8444-555555555555"; }
# By the kernel's own file: nvme-cli takes two hosts of one machine for one.
connect() {
    local options="transport=tcp,traddr=127.0.0.1,trsvcid=4420,nqn=$NQN,nr_io_queues=1,reconnect_delay=1,ctrl_loss_tmo=60"
    echo "$options,duplicate_connect,hostnqn=nqn.2014-08.org.nvmexpress:uuid:$(id "$1"),hostid=$(id "$1")" >/dev/nvme-fabrics
}
# node N: the block device of host N.
node() {
    local controller device
    for controller in /sys/class/nvme/nvme*; do
        [[ -e $controller/hostid && $(<"$controller/hostid") == "$(id "$1")" ]] || continue
        for device in "$controller"/nvme*n1; do
            [[ -b /dev/${device##*/} ]] && echo "/dev/${device##*/}" && return
        done
    done
    return 1
}
is_there() { node "$1" >/dev/null; }
# ends TEXT COMMAND: what nvme-cli says of a command, as one word.
ends() {
    local said
    if said=$("${@:2}" 2>&1); then
        echo "$1: done"
    elif [[ ${said,,} == *reservation[_\ ]conflict* ]]; then
        echo "$1: conflict"
    else
        echo "$1: $said"
    fi
}
writes() {
    if dd if=/run/data of="$1" bs=4k count=1 oflag=direct,dsync status=none 2>/dev/null; then echo "$2 writes"; else echo "$2 is refused"; fi
}
# reports DEVICE: the type, how many are registered, whether that persists, and of each whether it holds it, and its key.
reports() {
    nvme resv-report "$1" --namespace-id=1 --eds --output-format=json >/run/report 2>&1 || fail "$(cat /run/report)"
    cat /run/report >&2
    jq -Mc '[.rtype, .regctl, .ptpls, [.regctlext[] | [.rcsts, .rkey]]]' /run/report
}

head -c 4096 /dev/urandom >/run/data
connect 1
wait_for 20 is_there 1
connect 2
wait_for 20 is_there 2
one=$(node 1) two=$(node 2)
echo "$one $two" >&2
[[ $one != "$two" ]] || fail "both hosts have the device $one"
nvme id-ns "$one" | grep -E '^rescap' | tr -s ' '

ends "one registers, for good" nvme resv-register "$one" --namespace-id=1 --nrkey=0x11 --rrega=0 --cptpl=3
ends "one acquires, write exclusive" nvme resv-acquire "$one" --namespace-id=1 --crkey=0x11 --rtype=1 --racqa=0
reports "$two"
writes "$one" one
writes "$two" two
ends "two acquires" nvme resv-acquire "$two" --namespace-id=1 --crkey=0x22 --rtype=1 --racqa=0
dd if="$two" bs=4k count=1 iflag=direct status=none | cmp - /run/data && echo "two reads"

stop_daemon KILL
start_daemon
writes_again() { [[ $(writes "$one" one) == "one writes" ]]; }
wait_for 60 writes_again
echo "one writes again after kill -9"
reads_again() { dd if="$two" of=/dev/null bs=4k count=1 iflag=direct status=none 2>/dev/null; }
wait_for 60 reads_again
writes "$two" two
reports "$two"

ends "two registers" nvme resv-register "$two" --namespace-id=1 --nrkey=0x22 --rrega=0 --cptpl=0
ends "two preempts one" nvme resv-acquire "$two" --namespace-id=1 --crkey=0x22 --prkey=0x11 --rtype=1 --racqa=1
reports "$one"
writes "$one" one
writes "$two" two
# Type 1 is "registration preempted", whatever nvme-cli calls it.
nvme resv-notif-log "${one%n1}" | grep -oE '(Page Type|Namespace ID).*: *[0-9]+' | tr -s '\t :' ' '
ends "one releases what is not its own" nvme resv-release "$one" --namespace-id=1 --crkey=0x11 --rtype=1 --rrela=0
ends "two releases" nvme resv-release "$two" --namespace-id=1 --crkey=0x22 --rtype=1 --rrela=0
writes "$one" one

# Without persistence: gone with the daemon.
ends "two persists no more" nvme resv-register "$two" --namespace-id=1 --crkey=0x22 --nrkey=0x23 --rrega=2 --cptpl=2
ends "two acquires again" nvme resv-acquire "$two" --namespace-id=1 --crkey=0x23 --rtype=2 --racqa=0
writes "$one" one
stop_daemon KILL
start_daemon
wait_for 60 writes_again
echo "one writes after kill -9"
reports "$one"
nvme disconnect -n "$NQN" >&2
