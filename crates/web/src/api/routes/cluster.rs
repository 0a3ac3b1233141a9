//! Apps, executors, servers and namespaces.

use serde_json::json;

use crate::access::Permission::{Admin, Cluster, Edit, Operate, View};
use crate::api::{Page, apps, events, executors, namespaces, nodes, webhooks};
use crate::openapi::Doc;
use crate::problem::Code;
use crate::routes::Routes;

pub(super) fn routes() -> Routes {
    of_apps().and(of_servers()).and(of_namespaces())
}

fn of_apps() -> Routes {
    Routes::new()
        .get(
            "/api/v1/apps",
            View,
            apps::list,
            Doc::new("List apps", "With their switch, and the number of executors that this server hears.")
                .json::<Page<apps::AppJson>>(200, "All apps that one may see."),
        )
        .post(
            "/api/v1/apps",
            Edit,
            apps::create,
            Doc::new("Create an app", "An app also comes into being with its first job.")
                .json::<apps::AppJson>(201, "The app, new.")
                .json::<apps::AppJson>(200, "The app, which was there before.")
                .example(json!({"name": "billing"})),
        )
        .get(
            "/api/v1/apps/{app}/handlers",
            View,
            apps::handlers,
            Doc::new(
                "List an app's handlers",
                "What executors online can run, and what parameters that takes, as a JSON schema.",
            )
            .json::<Page<apps::HandlerJson<'static>>>(200, "The handlers."),
        )
        .get(
            "/api/v1/apps/{app}/declaration-problems",
            View,
            apps::declaration_problems,
            Doc::new(
                "List what is wrong with declared jobs",
                "As far as the executors whose code declares them are connected to this server.",
            )
            .json::<Page<apps::ProblemJson<'static>>>(200, "What is wrong."),
        )
        .put(
            "/api/v1/apps/{app}/state",
            Operate,
            apps::set_state,
            Doc::new("Throw an app's switch", "Every server sees it within a second.")
                .json::<apps::AppJson>(200, "The app.")
                .example(json!({"state": "active"})),
        )
}

fn of_servers() -> Routes {
    Routes::new()
        .get(
            "/api/v1/executors",
            View,
            executors::list,
            Doc::new("List executors", "Those online, and those seen within the last hour.").json::<Page<
                executors::ExecutorJson,
            >>(
                200, "The executors."
            ),
        )
        .get(
            "/api/v1/events",
            View,
            events::listen,
            Doc::new(
                "Listen to what happens",
                "Runs that come to stand elsewhere, jobs that are saved, executors and servers that come and go: as server-sent events, \
                 or with `Accept: application/x-ndjson` as lines of JSON. The first one is `ready`, the last one `end`; `gap` says that \
                 something may have been missed.",
            )
            .stream("text/event-stream", "A stream of events, until one side ends it.")
            .text("application/x-ndjson")
            .reads(events::LAST_EVENT)
            .refuses(&[Code::InvalidHeader]),
        )
        .get(
            "/api/v1/nodes",
            View,
            nodes::list,
            Doc::new("List servers", "Of the cluster; the one that answers has `counters`, each 0 in a quiet cluster.")
                .json::<Page<nodes::NodeJson>>(200, "The servers."),
        )
        .put(
            "/api/v1/nodes/{name}/state",
            Cluster,
            nodes::set_state,
            Doc::new("Throw a server's switch", "Every server sees it within a second.")
                .json::<nodes::NodeJson>(200, "The server.")
                .example(json!({"state": "active"})),
        )
}

fn of_namespaces() -> Routes {
    Routes::new()
        .get(
            "/api/v1/namespaces",
            View,
            namespaces::list,
            Doc::new("List namespaces", "Those of which one may see something.")
                .json::<Page<namespaces::NamespaceJson>>(200, "The namespaces."),
        )
        .post(
            "/api/v1/namespaces",
            Cluster,
            namespaces::create,
            Doc::new("Create a namespace", "It is empty.")
                .json::<namespaces::NamespaceJson>(201, "The namespace.")
                .refuses(&[Code::NamespaceExists])
                .example(json!({"name": "staging"})),
        )
        .delete(
            "/api/v1/namespaces/{name}",
            Cluster,
            namespaces::delete,
            Doc::new("Delete a namespace", "Refused while it has jobs or calendars, or if it ever had jobs.")
                .empty("It is deleted.")
                .refuses(&[Code::NamespaceUsed]),
        )
        .get(
            "/api/v1/namespaces/{name}/failure-webhook",
            Admin,
            webhooks::get,
            Doc::new("Get a failure webhook", "Where failed runs of the namespace are reported; without the secret.")
                .json::<webhooks::WebhookJson>(200, "The webhook.")
                .refuses(&[Code::WebhookNotFound]),
        )
        .put(
            "/api/v1/namespaces/{name}/failure-webhook",
            Admin,
            webhooks::put,
            Doc::new("Set a failure webhook", "One that is there gets the new URL and keeps its secret.")
                .json::<webhooks::WebhookJson>(200, "The webhook, changed.")
                .json::<webhooks::WebhookJson>(201, "The webhook, new, with `secret`, which is shown this once.")
                .refuses(&[Code::WebhookNotFound])
                .example(json!({"url": "https://example.com/rondel"})),
        )
        .delete(
            "/api/v1/namespaces/{name}/failure-webhook",
            Admin,
            webhooks::delete,
            Doc::new("Delete a failure webhook", "Nothing more is sent. Set again, it has a new secret.")
                .empty("It is deleted.")
                .refuses(&[Code::WebhookNotFound]),
        )
}
