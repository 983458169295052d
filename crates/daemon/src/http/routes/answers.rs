//! Additions to the OpenAPI document for the answers of all handlers.

use utoipa::Modify;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, SchemaType, Type};
use utoipa::openapi::{OpenApi, Ref, RefOr, Schema};

/// Describes every answer, and declares that the object of a change may be `null`.
pub(super) struct Answers;

impl Modify for Answers {
    fn modify(&self, document: &mut OpenApi) {
        for item in document.paths.paths.values_mut() {
            describe(item);
        }
        let Some(components) = &mut document.components else { return };
        for (name, schema) in &mut components.schemas {
            let (Some(of), RefOr::T(Schema::Object(changed))) = (name.strip_prefix("Changed_"), schema) else {
                continue;
            };
            let Some(object) = changed.properties.get_mut("object") else { continue };
            let null = ObjectBuilder::new().schema_type(SchemaType::Type(Type::Null));
            let described = "The object afterwards; `null` after a dry run and where the object is gone.";
            let either =
                OneOfBuilder::new().description(Some(described)).item(null).item(Ref::from_schema_name(of)).build();
            *object = RefOr::T(Schema::OneOf(either));
        }
    }
}

fn describe(item: &mut PathItem) {
    let looks = [&mut item.get].into_iter().flatten().map(|operation| (operation, "What was asked for"));
    let changes = [&mut item.post, &mut item.put, &mut item.patch, &mut item.delete];
    let changes = changes.into_iter().flatten().map(|operation| (operation, "Done, or what a dry run would do"));
    for (operation, said) in looks.chain(changes) {
        describe_answers(operation, said);
    }
}

fn describe_answers(operation: &mut Operation, said: &str) {
    for answer in operation.responses.responses.values_mut() {
        if let RefOr::T(answer) = answer
            && answer.description.is_empty()
        {
            said.clone_into(&mut answer.description);
        }
    }
}
