# A scrub is paused and the daemon killed: the settings are there afterwards, and the scrub holds its place until it is
# resumed. One that was at work goes on by itself.
NO_LOOP=yes
new_drives 5 256
start_daemon
p group create tank --level raid6 --drives "$(join "${DRIVES[@]}")" --client-p99 20ms --yes >/dev/null
p group set tank --retire-slow on --scrub-every 7d >/dev/null
p volume create tank/v --size 512MiB >/dev/null
p export create tank/v --nbd "unix:$NBD" >/dev/null
head -c 268435456 /dev/urandom >"$DIR/want"
nbdcopy --flush "$DIR/want" "nbd+unix:///tank/v?socket=$NBD"

# Clients that read keep the scrub slow enough to be caught at work.
fio --name=load --ioengine=nbd --uri="nbd+unix:///tank/v?socket=$NBD" --rw=randread --bs=4k --size=256m --iodepth=4 \
    --time_based --runtime=60 --minimal >/dev/null 2>&1 &
load=$!
sleep 0.3
p group scrub tank --repair >/dev/null
p group scrub tank --pause >/dev/null
sleep 2.5
done_before=$(json 'd["job"]["done_bytes"]' group scrub tank --status)
[[ $(json 'd["job"]["state"]' group scrub tank --status) == paused ]] || fail "not paused"
stop_daemon KILL
wait "$load" 2>/dev/null || true

start_daemon
settings=$(json 'sorted(d["settings"].items())' group show tank)
[[ $settings == "[('client_p99_us', 20000), ('retire_slow', True), ('scrub_every_s', 604800), ('thin_warn_percents', [80, 90, 95])]" ]] || fail "settings: $settings"
sleep 2.5
held=$(json 'd["job"]["state"], d["job"]["done_bytes"], d["job"]["findings"]["repair"]' group scrub tank --status)
[[ $held == "paused $done_before True" ]] || fail "it did not hold its place at $done_before: $held"
refuses 'purlin: the group "tank" has a scrub that is paused: resume or stop it' group scrub tank
p group scrub tank --resume --wait >"$DIR/report" || fail "$(cat "$DIR/report")"
[[ $(json 'd["scrub"]["last"]["mismatch_count"], d["scrub"]["last"]["repair"]' group show tank) == "0 True" ]] ||
    fail "the end was not noted: $(p group show tank)"
# It is on the members within a second; killed before, the daemon would go over the last part again.
sleep 2.5
stop_daemon KILL
start_daemon
[[ $(json 'd["scrub"]["last"]["repair"], d["scrub"]["active"]' group show tank) == "True False" ]] ||
    fail "the last scrub was forgotten"

# At work when the daemon is killed, it goes on by itself.
fio --name=load --ioengine=nbd --uri="nbd+unix:///tank/v?socket=$NBD" --rw=randread --bs=4k --size=256m --iodepth=4 \
    --time_based --runtime=60 --minimal >/dev/null 2>&1 &
load=$!
sleep 0.3
p group scrub tank >/dev/null
stop_daemon KILL
wait "$load" 2>/dev/null || true
start_daemon
for try in $(seq 100); do
    [[ $(json 'd["scrub"]["last"]["repair"], d["scrub"]["active"]' group show tank) == "False False" ]] && break
    ((try < 100)) || fail "the interrupted scrub did not come to its end: $(p group show tank)"
    sleep 0.2
done
grep -q "scrub taken up where it was interrupted.*paused=false" "$DIR/daemon.log" || fail "it was not taken up"
