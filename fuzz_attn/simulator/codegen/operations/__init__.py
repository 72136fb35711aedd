"""The operations of the IR, a module for each kind.

A handler emits one operation: it reads what stands for the operands (`emitter.operand`, `emitter.val`), emits an
expression (`emitter.elementwise`, `emitter.assign`) or statements (`emitter.add`), and lets terms stand for the results
(`emitter.define`). Each module's `HANDLERS` maps the names of its operations to their handlers, which
`codegen.generator` joins.

To add an operation: write its handler in the module of its kind and enter it there in `HANDLERS`; a new module is
entered in `codegen.generator`. A function that the generated code calls is entered in `codegen.program`.
"""
