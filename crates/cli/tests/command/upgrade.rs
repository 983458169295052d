//! The daemon's plan of an upgrade, and the command's report of the result.

use crate::answers::answered;
use crate::{Daemon, Said};

const RUNNING: &str = r#"{"state":"running","program":"/usr/bin/purlind","from_version":"0.1.0","to_version":"0.2.0","pause_us":null,"message":null}"#;

fn upgrade(looks: &[&str]) -> Said {
    let asked = format!(r#"{{"dry_run":false,"steps":["execute it"],"warnings":[],"object":{RUNNING}}}"#);
    let looks = looks.iter().map(|look| ("GET /v1/upgrade", 200, *look));
    answered("upgrade", &std::iter::once(("POST /v1/upgrade", 202, asked.as_str())).chain(looks).collect::<Vec<_>>())
}

#[test]
fn an_upgrade_says_how_long_nobody_was_served_or_why_it_failed() {
    let done = RUNNING.replace("running", "done").replace("\"pause_us\":null", "\"pause_us\":84310");
    let said = upgrade(&[RUNNING, &done]);
    let sentence = "upgraded purlind 0.1.0 to 0.2.0; nobody was served for 85 ms\n";
    assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (0, sentence, ""));
    let failed = done.replace("done", "failed").replace("\"message\":null", "\"message\":\"it cannot be executed\"");
    let said = upgrade(&[&failed]);
    let sentence = "purlin: it cannot be executed; purlind 0.1.0 goes on, after nobody was served for 85 ms\n";
    assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (1, "", sentence));
}

#[test]
fn the_plan_of_an_upgrade_names_both_versions() {
    let daemon = Daemon::start();
    daemon.program("next");
    assert_eq!(
        daemon.ok("upgrade --program DIR/next --dry-run"),
        format!(
            "nothing was changed; this would be done:\n  end all connections and stop all groups, in order\n  execute DIR/next, \
             purlind 9.8.7, in the place of purlind {}; its sockets listen on\n",
            env!("CARGO_PKG_VERSION")
        )
    );
    assert_eq!(
        daemon.fails("upgrade --program DIR/gone"),
        "purlin: cannot upgrade to DIR/gone: No such file or directory (os error 2)\n"
    );
    daemon.ok("group create tank --level raid1 --drives mem:a###:64MiB,mem:b###:64MiB --yes");
    assert_eq!(
        daemon.fails("upgrade --program DIR/next"),
        "purlin: the group \"tank\" has drives in the memory of the daemon, which end with it: stop it first\n"
    );
}
