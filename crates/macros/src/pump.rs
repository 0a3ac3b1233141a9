//! `#[rondel::pump("…")]` on an `impl Pump`: the name under which it is registered.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{ItemImpl, LitStr};

pub(crate) fn expand(args: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    let name: LitStr = syn::parse2(args)?;
    rondel_core::name::check_handler(&name.value()).map_err(|reason| syn::Error::new(name.span(), reason))?;
    let block: ItemImpl = syn::parse2(item)?;
    let is_pump =
        |(path, _): &(syn::Path, _)| path.segments.last().is_some_and(|last_segment| last_segment.ident == "Pump");
    if !block.trait_.as_ref().is_some_and(is_pump) {
        return Err(syn::Error::new_spanned(&block.self_ty, "the attribute goes on an `impl Pump for …`"));
    }
    let (generics, _, clause) = block.generics.split_for_impl();
    let ty = &block.self_ty;
    Ok(quote! {
        #block

        impl #generics ::rondel::NamedPump for #ty #clause {
            const NAME: &'static str = #name;
        }
    })
}
