//! The OpenAPI document describes everything that is served, and nothing else.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{call, empty, send};

/// Every operation: method, path.
fn operations(document: &Value) -> Vec<(String, String)> {
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys().filter(|key| *key != "parameters") {
            operations.push((method.to_uppercase(), path.clone()));
        }
    }
    operations.sort_by(|a, b| (&a.1, &a.0).cmp(&(&b.1, &b.0)));
    operations
}

async fn served() -> Value {
    let machine = empty().await;
    call(&machine, "GET", "/openapi.json", Value::Null).await.1
}

#[tokio::test]
async fn the_routes_are_these() {
    assert_eq!(
        operations(&served().await).into_iter().map(|(m, p)| format!("{m} {p}")).collect::<Vec<_>>(),
        [
            "GET /metrics",
            "GET /openapi.json",
            "GET /v1/drives",
            "GET /v1/drives/{drive}",
            "POST /v1/drives/{drive}/wipe",
            "GET /v1/exports",
            "POST /v1/exports",
            "DELETE /v1/exports/{id}",
            "GET /v1/exports/{id}",
            "PATCH /v1/exports/{id}",
            "DELETE /v1/exports/{id}/hosts/{host}",
            "PUT /v1/exports/{id}/hosts/{host}",
            "PATCH /v1/exports/{id}/hosts/{host}/limit",
            "GET /v1/groups",
            "POST /v1/groups",
            "POST /v1/groups/assemble",
            "DELETE /v1/groups/{group}",
            "GET /v1/groups/{group}",
            "PATCH /v1/groups/{group}",
            "POST /v1/groups/{group}/forget",
            "DELETE /v1/groups/{group}/hosts/{host}/key",
            "PUT /v1/groups/{group}/hosts/{host}/key",
            "DELETE /v1/groups/{group}/hosts/{host}/tls-key",
            "PUT /v1/groups/{group}/hosts/{host}/tls-key",
            "POST /v1/groups/{group}/members/{slot}/fail",
            "POST /v1/groups/{group}/members/{slot}/replace",
            "PATCH /v1/groups/{group}/name",
            "POST /v1/groups/{group}/scrub",
            "DELETE /v1/groups/{group}/spares",
            "POST /v1/groups/{group}/spares",
            "POST /v1/groups/{group}/start",
            "POST /v1/groups/{group}/stop",
            "GET /v1/hosts",
            "GET /v1/imports",
            "POST /v1/imports",
            "POST /v1/imports/nvme",
            "GET /v1/imports/{import}",
            "POST /v1/imports/{import}/forget",
            "GET /v1/referrals",
            "DELETE /v1/referrals/{address}",
            "PUT /v1/referrals/{address}",
            "POST /v1/scan",
            "GET /v1/shares",
            "POST /v1/shares",
            "DELETE /v1/shares/hosts/{host}/key",
            "PUT /v1/shares/hosts/{host}/key",
            "DELETE /v1/shares/hosts/{host}/tls-key",
            "PUT /v1/shares/hosts/{host}/tls-key",
            "DELETE /v1/shares/{id}",
            "DELETE /v1/shares/{id}/hosts/{host}",
            "PUT /v1/shares/{id}/hosts/{host}",
            "GET /v1/status",
            "GET /v1/upgrade",
            "POST /v1/upgrade",
            "GET /v1/volumes",
            "POST /v1/volumes",
            "DELETE /v1/volumes/{group}/{volume}",
            "GET /v1/volumes/{group}/{volume}",
            "PATCH /v1/volumes/{group}/{volume}",
            "POST /v1/volumes/{group}/{volume}/convert",
            "PATCH /v1/volumes/{group}/{volume}/limit",
            "PATCH /v1/volumes/{group}/{volume}/name",
            "PATCH /v1/volumes/{group}/{volume}/thin",
        ]
    );
}

#[tokio::test]
async fn every_documented_operation_is_served_and_no_other_method_is() {
    let router = empty().await;
    let documented: BTreeSet<(String, String)> = operations(&served().await).into_iter().collect();
    let paths: BTreeSet<&String> = documented.iter().map(|(_, path)| path).collect();
    for path in paths {
        let real = path.replace("{slot}", "0").replace(['{', '}'], "");
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            let (status, text) = send(&router, method, &real, "").await;
            let route_is_there = !(status == 404 && text.contains("\"no_route\"")) && status != 405;
            let expected = documented.contains(&(method.to_owned(), path.clone()));
            assert_eq!(route_is_there, expected, "{method} {path}: {status} {text}");
        }
    }
}

/// Calls `visit` with each object in `value`, and its path.
fn walk<'a>(way: &str, value: &'a Value, visit: &mut impl FnMut(&str, &'a serde_json::Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            visit(way, object);
            for (key, value) in object {
                walk(&format!("{way}/{key}"), value, visit);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| walk(way, value, visit)),
        _ => {}
    }
}

#[tokio::test]
async fn the_document_is_sound() {
    let document = served().await;
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let mut references = 0;
    walk("#", &document, &mut |way, object| {
        if let Some(Value::String(reference)) = object.get("$ref") {
            references += 1;
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{way} points to {reference}, which is not there");
        }
        if object.contains_key("responses") && object.contains_key("operationId") {
            assert!(object["summary"].is_string(), "{way} says what it does");
            let refusal = &object["responses"]["default"]["content"]["application/json"]["schema"]["$ref"];
            if object["operationId"] != "openapi" {
                assert_eq!(refusal, "#/components/schemas/ErrorBody", "{way} says what a refusal looks like");
            }
        }
    });
    assert!(references > 50, "{references}");

    let mut ids = BTreeSet::new();
    for (method, path) in operations(&document) {
        let operation = &document["paths"][&path][method.to_lowercase()];
        assert!(ids.insert(operation["operationId"].as_str().unwrap()), "{operation}");
        let declared: BTreeSet<&str> = operation["parameters"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|parameter| parameter["in"] == "path")
            .map(|parameter| parameter["name"].as_str().unwrap())
            .collect();
        let used: BTreeSet<&str> = path.split(['{', '}']).skip(1).step_by(2).collect();
        assert_eq!(declared, used, "{method} {path}");
    }
}

#[tokio::test]
async fn every_answer_is_described_and_the_object_of_a_change_may_be_null() {
    let document = served().await;
    for (method, path) in operations(&document) {
        let answers = document["paths"][&path][method.to_lowercase()]["responses"].as_object().unwrap();
        for (status, answer) in answers {
            assert!(answer["description"].as_str().is_some_and(|said| !said.is_empty()), "{method} {path} {status}");
        }
    }
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let changed: Vec<_> = schemas.iter().filter(|(name, _)| name.starts_with("Changed_")).collect();
    assert!(changed.len() >= 10, "{}", changed.len());
    for (name, schema) in changed {
        let choices = schema["properties"]["object"]["oneOf"].as_array().unwrap_or_else(|| panic!("{name}"));
        assert!(choices.iter().any(|choice| choice["type"] == "null"), "{name}");
        assert!(choices.iter().any(|choice| choice["$ref"].is_string()), "{name}");
    }
}

#[tokio::test]
async fn every_field_is_described() {
    let document = served().await;
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        for (field, property) in schema["properties"].as_object().into_iter().flatten() {
            // An optional object's description stands beside its reference.
            let choices = property["oneOf"].as_array().into_iter().flatten().chain([property]);
            let described = choices.filter(|choice| choice["description"].is_string()).count() > 0;
            assert!(described, "{name}.{field} has no description");
        }
    }
}

#[tokio::test]
async fn the_document_in_docs_is_the_one_served() {
    let path = "../../docs/api/openapi.json";
    let mut text = serde_json::to_string_pretty(&served().await).unwrap();
    text.push('\n');
    if std::env::var_os("PURLIN_WRITE_DOCS").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let there = std::fs::read_to_string(path).unwrap();
    assert!(there == text, "docs/api/openapi.json is behind: run this test with PURLIN_WRITE_DOCS=1");
}

#[tokio::test]
async fn a_field_that_no_request_has_is_refused_everywhere() {
    let document = served().await;
    let mut tried = 0;
    let router = empty().await;
    for (method, path) in operations(&document) {
        let operation = &document["paths"][&path][method.to_lowercase()];
        let real = path.replace("{slot}", "0").replace(['{', '}'], "");
        let refused = if operation["requestBody"].is_object() {
            send(&router, &method, &real, r#"{"surprise": 1}"#).await
        } else if operation["parameters"].as_array().into_iter().flatten().any(|p| p["in"] == "query") {
            send(&router, &method, &format!("{real}?surprise=1"), "").await
        } else {
            continue;
        };
        tried += 1;
        assert_eq!(refused.0, 400, "{method} {path}");
        assert!(refused.1.contains("unknown field `surprise`"), "{method} {path}: {}", refused.1);
        assert!(refused.1.contains("\"bad_request\""), "{method} {path}: {}", refused.1);
    }
    assert_eq!(tried, 34);
}
