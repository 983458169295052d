# Ten thousand connections that say nothing, NVMe/TCP and NBD: a host that is connected goes on and is answered in time, new ones get in, the API
# answers, and the daemon stays small. It may open as many descriptors as the system allows, whatever its shell does.
ulimit -S -n 1024
start_daemon
port=$(free_port) nbd_port=$(free_port)
p group create m --level raid1 --drives mem:a:64MiB,mem:b:64MiB --yes >/dev/null
p volume create m/v --size 32MiB >/dev/null
p export create m/v --nvme-tcp "127.0.0.1:$port" --allow-any-host >/dev/null
nqn=$(json 'd["exports"][0]["nqn"]' export list)
p export create m/v --nbd "127.0.0.1:$nbd_port" >/dev/null
bench() { purlin nvme bench "127.0.0.1:$port" "$nqn" --seconds "$1" --output json; }
bench 1 >/dev/null
resident() { awk '$1 == "VmRSS:" { print $2 }' "/proc/$DAEMON/status"; }
before=$(resident)
bench 8 >"$DIR/bench.json" 2>"$DIR/bench.err" &
bench=$!
HELPERS+=("$bench")
python3 - "$port" "$nbd_port" "$DIR/held" <<'PY' &
import resource, socket, sys, time
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
for at in range(10000):
    held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1 + at % 2]))))
open(sys.argv[3], "w").close()
time.sleep(600)
PY
strangers=$!
HELPERS+=("$strangers")
for _ in $(seq 600); do [[ ! -e $DIR/held ]] || break; sleep 0.1; done
[[ -e $DIR/held ]] || fail "the strangers are not there"
p status --once >/dev/null || fail "the API does not answer"
bench 1 >/dev/null || fail "a new NVMe host is kept out"
nbdinfo --size "nbd://127.0.0.1:$nbd_port/m/v" >/dev/null || fail "a new NBD client is kept out"
wait "$bench" || fail "the host that was there is cut off: $(<"$DIR/bench.err")"
# With 32 in flight a read takes about a millisecond; others have the processors, too. Whoever waits for the strangers waits for seconds.
python3 - "$DIR/bench.json" <<'PY' || fail "the host that was there is slow, or was connected again: $(<"$DIR/bench.json")"
import json, sys
measured = json.load(open(sys.argv[1]))
took = measured["latency"]
print(f"measured: {measured['request_count']} reads, {took['p50_us']:.0f} us p50, {took['p99_us']:.0f} us p99")
sys.exit(measured["reconnect_count"] > 0 or not 0 < took["p50_us"] < 50_000 or took["p99_us"] >= 1_000_000)
PY
grown=$((($(resident) - before) / 1024))
kill "$strangers"
wait "$strangers" 2>/dev/null || true
echo "measured: $grown MiB more, $(grep -c 'too many connections' "$DIR/daemon.log") lines in the log"
((grown < 400)) || fail "the daemon grew by $grown MiB"
(($(grep -c 'too many connections' "$DIR/daemon.log") < 20)) || fail "the log is full of them"
