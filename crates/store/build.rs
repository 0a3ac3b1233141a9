//! The migrations are compiled into this crate, so a change to one of them must trigger a new build.

fn main() {
    println!("cargo:rerun-if-changed=../../migrations");
}
