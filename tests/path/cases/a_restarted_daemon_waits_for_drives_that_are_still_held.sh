# The kernel lets go of a killed daemon's drives when everything they were given is done. A daemon that is started before that
# waits for them, and does not leave them out: they would be stale.
NO_LOOP=yes
new_drives 4 128
start_daemon
p group create tank --level raid5 --drives "$(join "${DRIVES[@]}")" --yes >/dev/null
p volume create tank/v --size 64MiB >/dev/null
stop_daemon KILL
flock "${FILES[2]}" sleep 2 &
sleep 0.3
start_daemon
[[ $(json 'd["health"]' group show tank) == optimal ]] || fail "not all drives were waited for: $(p group show tank)"
