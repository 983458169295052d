# The same with thin volumes: the daemon is killed under load and in its recovery, drives are pulled and given back, and what
# was flushed is there, as fio, a file system and a model of every block see it.
THIN=yes
SEED=${SEED:-36}
. ./cases/flushed_data_survive_two_hundred_kills_and_pulled_drives.sh
