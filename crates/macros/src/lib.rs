//! `#[rondel::job(…)]`: declares a job at its function, with its schedule and policies.
//!
//! At compile time the attribute checks its arguments with the server's own parsers, and emits a plain `impl rondel::Job`
//! that could be written by hand. It registers nothing: `.job(function)` does. The documentation for users is at
//! `rondel::job`. `#[rondel::pump(…)]` gives a pump its name.

mod args;
mod check;
mod expand;
mod pump;
#[cfg(test)]
mod tests;

use proc_macro::TokenStream;

/// See `rondel::job`, its name for users.
#[proc_macro_attribute]
pub fn job(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(args.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// See `rondel::pump`, its name for users.
#[proc_macro_attribute]
pub fn pump(args: TokenStream, item: TokenStream) -> TokenStream {
    pump::expand(args.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}
