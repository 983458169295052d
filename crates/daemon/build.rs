//! Tells the program its version and commit.

fn main() {
    commit::tell_cargo();
}
