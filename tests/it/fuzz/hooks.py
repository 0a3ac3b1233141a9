"""Takes made-up calls deeper: half of them name what is there. Given to schemathesis by the test beside this file."""

import json
import os
import zlib

import schemathesis

# By the beginning of the path: the parameter, and what is there.
KNOWN = json.loads(os.environ["RONDEL_FUZZ_KNOWN"])


@schemathesis.hook
def before_call(context, case, kwargs):
    parameters = case.path_parameters
    for beginning, (name, value) in KNOWN.items():
        if case.path.startswith(beginning) and isinstance(parameters, dict) and name in parameters:
            # What is deleted is not there any more: the others would be left with little.
            of = 40 if case.method.upper() == "DELETE" else 2
            if zlib.crc32(str(parameters).encode("utf-8", "replace")) % of == 0:
                parameters[name] = value
    query = case.query
    # A namespace that is not there ends every call at its door.
    if isinstance(query, dict) and zlib.crc32(str(query).encode("utf-8", "replace")) % 4:
        query.pop("namespace", None)
    # A log that is followed goes on until its run is over.
    if isinstance(query, dict) and case.path.endswith("/logs"):
        query.pop("follow", None)
