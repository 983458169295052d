# fio over NBD and `purlin nvme bench` over NVMe/TCP read one volume at the same time: together they get what the volume's limit says,
# at once after each change of it and after a kill of the daemon; a host's limit holds for that host.
new_drives 2 96 4096
start_daemon
p group create tank --level raid1 --drives "$(join "${DRIVES[@]}")" --yes
p volume create tank/disk --size 64MiB
port=$(free_port)
host=nqn.2026-11.com.example:path
p export create tank/disk --nbd "unix:$NBD"
p export create tank/disk --nvme-tcp "127.0.0.1:$port" --host "$host"
id=$(json '[e["id"] for e in d["exports"] if e["protocol"] == "nvme_tcp"][0]' export list)
nqn=$(json '[e["nqn"] for e in d["exports"] if e["nqn"]][0]' export list)
export XDG_CONFIG_HOME=$DIR XDG_RUNTIME_DIR=$DIR

# rate FIELD [PURLIN ARGUMENTS]: how much a counter grows in a second, over four. The moments are those of the answers.
rate() {
    python3 - "$SOCKET" "$@" <<'PYTHON'
import json, subprocess, sys, time
socket, field, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]
def look():
    before = time.monotonic()
    answer = subprocess.run(["purlin", "--socket", socket, *arguments, "-o", "json"], check=True, capture_output=True)
    return (before + time.monotonic()) / 2, eval(field, {"d": json.loads(answer.stdout)})
(begin, first) = look()
time.sleep(4)
(end, last) = look()
print(round((last - first) / (end - begin)))
PYTHON
}
# within RATE EXPECTED WHAT: some 10 % of it.
within() {
    (($1 * 100 > $2 * 88 && $1 * 100 < $2 * 112)) || fail "$3: $1 a second instead of $2"
    echo "measured: $3: $1 of $2 a second"
}
reads() { rate 'd["io"]["read_count"]' volume show tank/disk; }

p volume limit tank/disk --iops 1500
start_clients() {
    fio --name=load --ioengine=nbd --uri="nbd+unix:///tank/disk?socket=$NBD" --rw=randread --bs=4k --iodepth=16 --size=64m \
        --time_based --runtime=60 --output="$DIR/fio" &
    fio=$!
    purlin nvme bench "127.0.0.1:$port" "$nqn" --hostnqn "$host" --depth 16 --seconds 60 >"$DIR/bench" &
    bench=$!
    sleep 1
}
end_clients() {
    kill "$fio" "$bench" 2>/dev/null || true
    wait "$fio" "$bench" 2>/dev/null || true
}
start_clients
within "$(reads)" 1500 "both clients under one limit"
waited=$(json 'd["limit"]["waited_count"]' volume show tank/disk)
((waited > 1000)) || fail "$waited have waited"
p volume limit tank/disk --iops 600
within "$(reads)" 600 "both after the limit was lowered"
p host limit "$host" "$id" --bandwidth 400KiB
within "$(rate "[h for h in d['hosts'] if h['nqn'] == '$host'][0]['io']['read_count']" host list)" 100 "the host at 400 KiB of 4 KiB each"
within "$(reads)" 600 "and both still"
p volume limit tank/disk --iops off
free=$(reads)
((free > 2000)) || fail "$free a second without a limit"
within "$(rate "[h for h in d['hosts'] if h['nqn'] == '$host'][0]['io']['read_count']" host list)" 100 "the host alone is limited"
p volume limit tank/disk --bandwidth 4MiB --burst 50ms
end_clients
stop_daemon KILL
start_daemon
p host limit "$host" "$id" --bandwidth off
start_clients
within "$(reads)" 1024 "4 MiB of 4 KiB each, after a kill"
end_clients
