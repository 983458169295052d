# With a group, a volume and a connected client, but nothing to do: under 0.5% of a core.
start_daemon
p group create m --level raid6 --drives mem:a:64MiB,mem:b:64MiB,mem:c:64MiB,mem:d:64MiB --yes >/dev/null
p volume create m/v --size 32MiB >/dev/null
p export create m/v --nbd "unix:$NBD" >/dev/null
nbdsh -u "nbd+unix:///m/v?socket=$NBD" -c 'import time; h.pread(512, 0); time.sleep(12)' &
client=$!
sleep 1.5
kill -0 "$client" || fail "the client is not connected"
ticks() { awk '{print $14 + $15}' "/proc/$DAEMON/stat"; }
before=$(ticks)
sleep 10
used=$(($(ticks) - before))
kill "$client" 2>/dev/null || true
echo "measured: $used ticks of 1/$(getconf CLK_TCK) s in 10 s"
((used <= 5 * $(getconf CLK_TCK) / 100)) || fail "the idle daemon used $used ticks in 10 s"
