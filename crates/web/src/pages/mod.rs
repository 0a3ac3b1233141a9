//! The pages for people.

use crate::routes::{OpenPath, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new().open(OpenPath::Home, home)
}

async fn home() -> &'static str {
    "Rondel\n\nThe API is at /api/v1 and asks for a token: Authorization: Bearer …\nHealth: /livez and /readyz.\n"
}
