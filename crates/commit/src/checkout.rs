//! A git checkout: its commit, and the files that change with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The git folders of a checkout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkout {
    /// The folder with `HEAD`: `.git`, or the one that a worktree has in the repository.
    own: PathBuf,
    /// The folder with the refs, which worktrees share.
    common: PathBuf,
}

impl Checkout {
    /// The checkout whose root is this folder. A folder inside a checkout is none.
    pub fn at(root: &Path) -> Option<Checkout> {
        let git = root.join(".git");
        let own = if git.is_dir() { git } else { root.join(named(&git, "gitdir: ")?) };
        let common = match named(&own.join("commondir"), "") {
            Some(common) => own.join(common),
            None => own.clone(),
        };
        Some(Checkout { own, common })
    }

    /// The commit of `HEAD` and its date, such as `297b581, 2026-11-28`. `None` if there is no
    /// commit or no git.
    pub fn commit(&self) -> Option<String> {
        let mut git = Command::new("git");
        git.arg("--git-dir").arg(&self.own);
        // The options override settings of the user.
        git.args(["log", "--max-count=1", "--no-show-signature", "--abbrev=7", "--format=%h, %cs"]);
        let output = git.output().ok().filter(|output| output.status.success())?;
        let commit = String::from_utf8(output.stdout).ok()?.trim_end().to_owned();
        Some(commit).filter(|commit| !commit.is_empty())
    }

    /// The files that change when `HEAD` becomes another commit. All of them exist: Cargo takes a
    /// file that does not exist for one that has changed.
    pub fn files_of_head(&self) -> Vec<PathBuf> {
        let head = self.own.join("HEAD");
        // The list of tables of refs, where refs are not files.
        let tables = [&self.own, &self.common].map(|folder| folder.join("reftable/tables.list"));
        let mut files = Vec::from(tables);
        if let Some(name) = named(&head, "ref: ") {
            let branch = self.common.join(name);
            if !branch.is_file() {
                // A packed ref gets a file of its own at its next change.
                files.extend(branch.ancestors().find(|folder| folder.is_dir()).map(Path::to_path_buf));
                files.push(self.common.join("packed-refs"));
            }
            files.push(branch);
        }
        files.push(head);
        files.retain(|file| file.exists());
        files.sort();
        files.dedup();
        files
    }
}

/// The name in a file of one line that begins with `prefix`.
fn named(file: &Path, prefix: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    text.strip_prefix(prefix).map(|name| name.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repository in a folder of its own, which is removed with it.
    struct Repository(PathBuf);

    impl Repository {
        /// One with a commit on the branch `topic/main`.
        fn new(name: &str) -> Repository {
            let folder = std::env::temp_dir().join(format!("purlin-commit-{name}-{}", std::process::id()));
            fs::create_dir(&folder).unwrap();
            let repository = Repository(fs::canonicalize(folder).unwrap());
            repository.git("init --quiet --initial-branch topic/main source");
            repository.commit();
            repository
        }

        fn root(&self) -> PathBuf {
            self.0.join("source")
        }

        /// Runs git in the folder, or in the checkout once there is one, without the user's
        /// configuration.
        fn git(&self, line: &str) {
            let root = self.root();
            let mut git = Command::new("git");
            git.args(line.split(' ')).current_dir(if root.exists() { &root } else { &self.0 });
            for (name, value) in [
                ("GIT_CONFIG_GLOBAL", "/dev/null"),
                ("GIT_CONFIG_NOSYSTEM", "1"),
                ("GIT_AUTHOR_NAME", "a"),
                ("GIT_AUTHOR_EMAIL", "a@example.com"),
                ("GIT_AUTHOR_DATE", "2026-11-01T12:00:00Z"),
                ("GIT_COMMITTER_NAME", "a"),
                ("GIT_COMMITTER_EMAIL", "a@example.com"),
                ("GIT_COMMITTER_DATE", "2026-11-28T12:00:00Z"),
            ] {
                git.env(name, value);
            }
            let output = git.output().unwrap();
            assert!(output.status.success(), "git {line}: {output:?}");
        }

        fn commit(&self) {
            self.git("commit --quiet --allow-empty --message change");
        }

        /// The files of `HEAD`, from the repository's folder.
        fn files(&self, root: &Path) -> Vec<String> {
            let checkout = Checkout::at(root).unwrap();
            let files = checkout.files_of_head().into_iter().map(|file| fs::canonicalize(file).unwrap());
            files.map(|file| file.strip_prefix(&self.0).unwrap().display().to_string()).collect()
        }
    }

    impl Drop for Repository {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_commit_has_a_short_hash_and_a_date() {
        let repository = Repository::new("hash");
        let commit = Checkout::at(&repository.root()).unwrap().commit().unwrap();
        let (hash, date) = commit.split_once(", ").unwrap();
        assert_eq!((hash.len(), date), (7, "2026-11-28"));
        assert!(hash.chars().all(|c| c.is_ascii_hexdigit()), "{hash}");
    }

    #[test]
    fn a_branch_is_a_file_or_packed() {
        let repository = Repository::new("packed");
        let loose = ["source/.git/HEAD", "source/.git/refs/heads/topic/main"];
        assert_eq!(repository.files(&repository.root()), loose);
        repository.git("pack-refs --all");
        let packed = ["source/.git/HEAD", "source/.git/packed-refs", "source/.git/refs/heads"];
        assert_eq!(repository.files(&repository.root()), packed);
        repository.commit();
        assert_eq!(repository.files(&repository.root()), loose);
        repository.git("checkout --quiet --detach");
        assert_eq!(repository.files(&repository.root()), ["source/.git/HEAD"]);
    }

    #[test]
    fn a_worktree_has_a_head_of_its_own_and_shares_the_branches() {
        let repository = Repository::new("worktree");
        repository.git("worktree add --quiet -b other ../beside");
        let beside = repository.0.join("beside");
        let files = ["source/.git/refs/heads/other", "source/.git/worktrees/beside/HEAD"];
        assert_eq!(repository.files(&beside), files);
        let checkout = |root: &Path| Checkout::at(root).unwrap();
        assert_eq!(checkout(&beside).commit(), checkout(&repository.root()).commit());
    }

    #[test]
    fn a_folder_inside_a_checkout_is_none() {
        let repository = Repository::new("inside");
        let inside = repository.root().join("inside");
        fs::create_dir(&inside).unwrap();
        assert_eq!(Checkout::at(&inside), None);
        fs::create_dir(inside.join(".git")).unwrap();
        assert_eq!(Checkout::at(&inside).unwrap().commit(), None, "git refuses it");
    }
}
