# discover, connect, bench: Purlin's host at Purlin's target, and NBD clients behind it, over a restart of the daemon.
new_drives 4 96 4096
start_daemon
p group create tank --level raid5 --drives "$(join "${DRIVES[@]}")" --yes
p volume create tank/disk --size 100MiB
port=$(free_port)
host=nqn.2026-11.com.example:path
p export create tank/disk --nvme-tcp "127.0.0.1:$port" --host "$host"
export XDG_CONFIG_HOME=$DIR XDG_RUNTIME_DIR=$DIR

nvme() { purlin nvme "$1" "${@:2}" --hostnqn "$host"; }
nqn=$(nvme discover "127.0.0.1:$port" -o json |
    python3 -c 'import json,sys; print(*[s["nqn"] for s in json.load(sys.stdin)["subsystems"] if s["kind"] == "nvme"])')
[[ $nqn == nqn.2014-08.org.nvmexpress:uuid:* ]] || fail "discovery says $nqn"
[[ -z $(purlin nvme discover "127.0.0.1:$port" --hostnqn nqn.2026-11.com.example:other | grep "$nqn") ]] ||
    fail "another host sees it"

nvme connect "127.0.0.1:$port" "$nqn" --nbd "unix:$NBD" --hdr-digest --data-digest >"$DIR/connected" &
connected=$!
for _ in $(seq 200); do
    if [[ -s $DIR/connected ]]; then break; fi
    sleep 0.05
done
uri="nbd+unix:///?socket=$NBD"
[[ $(nbdinfo --size "$uri") == 104857600 ]] || fail "nbdinfo sees another size"
head -c 30000000 /dev/urandom >"$DIR/image"
truncate -s 100M "$DIR/image"
nbdcopy "$DIR/image" "$uri"

# What was acknowledged is there after the daemon was killed under load.
fio --name=load --ioengine=nbd --uri="$uri" --rw=randwrite --bs=4k --iodepth=16 --offset=40m --size=40m --time_based --runtime=4 \
    --verify=crc32c --verify_backlog=64 --output="$DIR/fio" &
load=$!
sleep 1
stop_daemon KILL
start_daemon
wait "$load" || fail "fio: $(cat "$DIR/fio")"
cmp -n 30000000 <(nbdcopy "$uri" -) "$DIR/image" || fail "nbdcopy reads other bytes"
purlin nvme list | grep optimized >/dev/null || fail "the list: $(purlin nvme list)"
purlin nvme disconnect "$nqn"
wait "$connected" || fail "connect ended with $?"
[[ ! -e $NBD ]] || fail "the socket stays"

nvme bench "127.0.0.1:$port" "$nqn" --seconds 1 | grep 'randread of 4KiB' >/dev/null || fail "bench"
