//! The migrations are compiled in: a change to one of them must compile this crate again.

fn main() {
    println!("cargo:rerun-if-changed=../../migrations");
}
