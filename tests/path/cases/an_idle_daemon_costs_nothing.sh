# With a group, a volume, a connected NBD client and a connected NVMe host, but nothing to do: under 0.5% of a core.
# Without any, its buffers are not in memory.
start_daemon
resident=$(json 'd["resident_bytes"]' status --once)
echo "measured: resident $((resident >> 20)) MiB"
((resident < 60 << 20)) || fail "resident $resident bytes"
p group create m --level raid6 --drives mem:a:64MiB,mem:b:64MiB,mem:c:64MiB,mem:d:64MiB --yes >/dev/null
p volume create m/v --size 32MiB >/dev/null
p export create m/v --nbd "unix:$NBD" >/dev/null
nbdsh -u "nbd+unix:///m/v?socket=$NBD" -c 'import time; h.pread(512, 0); time.sleep(30)' &
client=$!
HELPERS+=("$client")
port=$(free_port)
p export create m/v --nvme-tcp "127.0.0.1:$port" --allow-any-host >/dev/null
nqn=$(json 'd["exports"][1]["nqn"]' export list)
purlin nvme connect "127.0.0.1:$port" "$nqn" --nr-io-queues 4 --nbd "unix:$DIR/host.sock" >/dev/null 2>"$DIR/host.log" &
host=$!
HELPERS+=("$host")
for _ in $(seq 100); do [[ ! -S $DIR/host.sock ]] || break; sleep 0.1; done
nbdsh -u "nbd+unix://?socket=$DIR/host.sock" -c 'h.pread(512, 0)' || fail "the host is not connected: $(<"$DIR/host.log")"
sleep 1.5
kill -0 "$client" || fail "the client is not connected"
ticks() { awk '{print $14 + $15}' "/proc/$DAEMON/stat"; }
before=$(ticks)
sleep 10
used=$(($(ticks) - before))
kill -0 "$host" || fail "the host has ended: $(<"$DIR/host.log")"
kill "$client" "$host" 2>/dev/null || true
wait "$host" 2>/dev/null || true
echo "measured: $used ticks of 1/$(getconf CLK_TCK) s in 10 s"
((used <= 5 * $(getconf CLK_TCK) / 100)) || fail "the idle daemon used $used ticks in 10 s"
