//! Expands the annotated function into a struct that implements `rondel::Job`, which users register.

use proc_macro2::TokenStream;
use quote::{ToTokens, format_ident, quote, quote_spanned};
use rondel_core::job::DESCRIPTION_LEN_MAX;
use rondel_core::notice::cut;
use syn::ext::IdentExt;
use syn::{Attribute, Expr, ExprLit, Ident, ItemFn, Lit, Meta};

use crate::args::{Arg, Args};
use crate::check::check;

pub(crate) fn expand(args: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    let args: Args = syn::parse2(args)?;
    let function: ItemFn = syn::parse2(item)?;
    if !function.sig.generics.params.is_empty() {
        return Err(syn::Error::new_spanned(&function.sig.generics, "a job's function has no type parameters"));
    }
    let name = job_name(&args, &function.sig.ident);
    check(&args, &name, function.sig.ident.span())?;
    Ok(emit(&args, &name, function))
}

fn job_name(args: &Args, function: &Ident) -> String {
    let given_name = args.0.iter().find(|arg| arg.kind.name == "name").and_then(|arg| arg.value.as_str());
    given_name.map_or_else(|| function.unraw().to_string(), str::to_owned)
}

fn emit(args: &Args, name: &str, mut function: ItemFn) -> TokenStream {
    let ident = std::mem::replace(&mut function.sig.ident, format_ident!("call"));
    let (docs, attributes): (Vec<_>, Vec<_>) = function.attrs.drain(..).partition(|attr| attr.path().is_ident("doc"));
    let visibility = &function.vis;
    let mut method_calls: Vec<TokenStream> = args.0.iter().filter_map(method_call).collect();
    if let Some(text) = description(&docs) {
        method_calls.insert(0, quote!(.description(#text)));
    }
    let constructor = if function.sig.asyncness.is_some() { format_ident!("of") } else { format_ident!("of_blocking") };
    // An error about a function that is not a handler points at the function's name.
    let handler = quote_spanned!(ident.span()=> ::rondel::JobHandler::#constructor(Self::call));
    quote! {
        #(#docs)*
        #[allow(non_camel_case_types, reason = "it is called like the function")]
        #[derive(Clone, Copy, Debug)]
        #visibility struct #ident;

        impl #ident {
            /// The function itself.
            #(#attributes)*
            #function
        }

        impl ::rondel::Job for #ident {
            fn declaration(&self) -> ::rondel::Declaration {
                ::rondel::Declaration::new(#name) #(#method_calls)*
            }

            fn handler(&self) -> ::rondel::JobHandler {
                #handler
            }
        }
    }
}

/// Converts an argument to a call of the declaration's method; `None` for the job's name.
fn method_call(arg: &Arg) -> Option<TokenStream> {
    if arg.kind.method.is_empty() {
        return None;
    }
    let method = format_ident!("{}", arg.kind.method);
    let value = match (&arg.tokens, arg.value.is_array() || arg.value.is_object()) {
        (literal @ Expr::Lit(_), true) => quote!([#literal]),
        (other, _) => other.to_token_stream(),
    };
    Some(quote!(.#method(#value)))
}

/// The first paragraph of the doc comment, in one line: the job's description in the console. It is cut to the length that
/// servers take.
fn description(docs: &[Attribute]) -> Option<String> {
    let doc_text = |attr: &Attribute| match &attr.meta {
        Meta::NameValue(pair) => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        Meta::Path(_) | Meta::List(_) => None,
    };
    let texts: Vec<String> = docs.iter().filter_map(doc_text).collect();
    let lines = texts.iter().flat_map(|text| text.split('\n').enumerate().map(|(index, line)| plain_line(index, line)));
    let lines: Vec<&str> = lines.skip_while(|line| line.is_empty()).take_while(|line| !line.is_empty()).collect();
    (!lines.is_empty()).then(|| cut(&lines.join(" "), DESCRIPTION_LEN_MAX))
}

/// A line of a comment. In a comment `/** … */`, a line after the first may begin with a star, which is removed.
fn plain_line(index: usize, line: &str) -> &str {
    let line = line.trim();
    match line.strip_prefix('*').filter(|_| index > 0) {
        Some(line_text) if line_text.is_empty() || line_text.starts_with(' ') => line_text.trim_start(),
        _ => line,
    }
}
