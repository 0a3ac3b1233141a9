"""Takes made-up calls deeper: half of them name what is there. Given to schemathesis by the test beside this file."""

import json
import os
import zlib

import schemathesis

# By the beginning of a path: the name of its parameter, and a value that names an object.
KNOWN = json.loads(os.environ["RONDEL_FUZZ_KNOWN"])


@schemathesis.hook
def before_call(context, case, kwargs):
    parameters = case.path_parameters
    for beginning, (name, value) in KNOWN.items():
        if case.path.startswith(beginning) and isinstance(parameters, dict) and name in parameters:
            # Deletions are rare, because the other calls need objects that exist.
            of = 40 if case.method.upper() == "DELETE" else 2
            if zlib.crc32(str(parameters).encode("utf-8", "replace")) % of == 0:
                parameters[name] = value
    query = case.query
    # A call in a namespace that does not exist is refused before anything else.
    if isinstance(query, dict) and zlib.crc32(str(query).encode("utf-8", "replace")) % 4:
        query.pop("namespace", None)
    # A followed log does not end before its run.
    if isinstance(query, dict) and case.path.endswith("/logs"):
        query.pop("follow", None)
