//! `#[rondel::job(…)]`: a function with its schedule and policies beside it.
//!
//! It checks what it is given by the server's own parsers while the program compiles, and emits a plain
//! `impl rondel::Job` that could be written by hand. It registers nothing: `.job(function)` does. Its description for
//! users is at `rondel::job`. `#[rondel::pump(…)]` gives a pump its name.

mod args;
mod check;
mod expand;
mod pump;
#[cfg(test)]
mod tests;

use proc_macro::TokenStream;

/// See `rondel::job`, under which users meet it.
#[proc_macro_attribute]
pub fn job(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(args.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// See `rondel::pump`, under which users meet it.
#[proc_macro_attribute]
pub fn pump(args: TokenStream, item: TokenStream) -> TokenStream {
    pump::expand(args.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}
