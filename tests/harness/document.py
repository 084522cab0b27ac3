"""Checks a JSON value against an OpenAPI document, with those keywords of JSON Schema that our document uses."""

TYPES = {
    "null": type(None), "boolean": bool, "string": str, "array": list, "object": dict, "integer": int, "number": float,
}  # fmt: skip
WORDS = {
    "$ref", "type", "enum", "oneOf", "properties", "required", "items", "additionalProperties", "propertyNames",
    "minimum", "description", "default", "format",
}  # fmt: skip


class Document:
    """The document of a server."""

    def __init__(self, document):
        self.paths = document["paths"]
        self.schemas = document["components"]["schemas"]

    def answer(self, method, path):
        """The schema of an answer with status 200."""
        return self.paths[path][method]["responses"]["200"]["content"]["application/json"]["schema"]

    def body(self, method, path):
        """The schema of a request's body."""
        return self.paths[path][method]["requestBody"]["content"]["application/json"]["schema"]

    def faults(self, value, schema, at="$"):
        """The differences of a value from its schema, as a list of texts. Names that are not in the schema are
        differences."""
        assert set(schema) <= WORDS, f"{at}: nothing here understands {set(schema) - WORDS}"
        if "$ref" in schema:
            return self.faults(value, self.schemas[schema["$ref"].rsplit("/", 1)[1]], at)
        if "oneOf" in schema:
            tried = [self.faults(value, each, at) for each in schema["oneOf"]]
            return [] if [] in tried else min(tried, key=len)
        types = schema.get("type", [])
        types = [types] if isinstance(types, str) else types
        if types and not any(self.is_of(value, each) for each in types):
            return [f"{at}: {value!r} is not of type {' or '.join(types)}"]
        if "enum" in schema and value not in schema["enum"]:
            return [f"{at}: {value!r} is none of {schema['enum']}"]
        if isinstance(value, list) and "items" in schema:
            return [each for i, part in enumerate(value) for each in self.faults(part, schema["items"], f"{at}[{i}]")]
        if isinstance(value, dict) and ("properties" in schema or "additionalProperties" in schema):
            return self.faults_of_object(value, schema, at)
        return []

    def faults_of_object(self, value, schema, at):
        """The differences of an object."""
        known, other = schema.get("properties", {}), schema.get("additionalProperties")
        found = [f"{at}: '{name}' is missing" for name in schema.get("required", []) if name not in value]
        for name, part in value.items():
            if name in known:
                found += self.faults(part, known[name], f"{at}.{name}")
            elif isinstance(other, dict):
                found += self.faults(part, other, f"{at}.{name}")
            else:
                found.append(f"{at}: '{name}' is not in the document")
        return found

    @staticmethod
    def is_of(value, kind):
        if isinstance(value, bool):
            return kind == "boolean"
        return isinstance(value, TYPES[kind]) or kind == "number" and isinstance(value, int)
