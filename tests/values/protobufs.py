"""Messages of Protobuf without a compiler: their descriptors are made by hand."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2

from duramen.values.protobuf import message_class

F = descriptor_pb2.FieldDescriptorProto


def file_of(*, later: bool = False) -> Any:
    """``shop.Order``; with ``later``, a version that has a field more."""
    file = descriptor_pb2.FileDescriptorProto(
        name="order.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    file.enum_type.add(name="Wood").value.extend(
        [descriptor_pb2.EnumValueDescriptorProto(name=name, number=n) for n, name in enumerate(("NONE", "OAK"))]
    )
    order = file.message_type.add(name="Order")
    fields = [
        ("id", F.TYPE_INT64, False, ""), ("name", F.TYPE_STRING, False, ""), ("raw", F.TYPE_BYTES, False, ""),
        ("big", F.TYPE_UINT64, False, ""), ("tags", F.TYPE_STRING, True, ""),
        ("wood", F.TYPE_ENUM, False, ".shop.Wood"),
        ("at", F.TYPE_MESSAGE, False, ".google.protobuf.Timestamp"),
        ("part", F.TYPE_MESSAGE, False, ".shop.Order.Part"),
        ("counts", F.TYPE_MESSAGE, True, ".shop.Order.CountsEntry"), ("self", F.TYPE_MESSAGE, False, ".shop.Order"),
        ("ratio", F.TYPE_DOUBLE, False, ""), ("is_open", F.TYPE_BOOL, False, ""),
    ]  # fmt: skip
    if later:
        fields.append(("late", F.TYPE_STRING, False, ""))
    for number, (name, kind, repeated, type_name) in enumerate(fields, 1):
        label = F.LABEL_REPEATED if repeated else F.LABEL_OPTIONAL
        order.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)
    part = order.nested_type.add(name="Part")
    part.field.add(name="n", number=1, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
    return file


def descriptor_set(*, later: bool = False) -> bytes:
    """Without the file of the timestamp: Protobuf's own files are found without it."""
    return descriptor_pb2.FileDescriptorSet(file=[file_of(later=later)]).SerializeToString()


def nested_set(*, messages: int, fields: int) -> bytes:
    """Messages of which each has several fields of the next one."""
    file = descriptor_pb2.FileDescriptorProto(name=f"deep{messages}.proto", package="deep", syntax="proto3")
    for level in range(messages):
        message = file.message_type.add(name=f"M{level}")
        kind = F.TYPE_MESSAGE if level + 1 < messages else F.TYPE_INT32
        inner = f".deep.M{level + 1}" if level + 1 < messages else None
        for number in range(fields):
            message.field.add(name=f"f{number}", number=number + 1, type=kind, type_name=inner, label=F.LABEL_OPTIONAL)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def order_class(*, later: bool = False) -> Any:
    return message_class(descriptor_set(later=later), "shop.Order")


def order(number: int, **more: Any) -> Any:
    kind = order_class(later="late" in more)
    made = kind(
        id=number, name=f"order {number}", raw=b"\xff", big=2**64 - 1, tags=["a", "b"], wood=1, counts={"x": 3},
        ratio=0.5, is_open=True, **more,
    )  # fmt: skip
    made.at.seconds, made.at.nanos = 1_700_000_000, 123_000
    made.part.n = 7
    return made
