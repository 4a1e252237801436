"""What referee, server and runner say to each other, and the checks that a message must pass.

Everything is MessagePack of tagged msgspec structs, so that a decoded message has the declared types or is refused.

    codec     how any message becomes bytes
    layout    where the tensors of a nested value lie in shared memory
    runner    commands to a runner, and its replies: claims of a process that may be hostile
    referee   between server and referee: both trusted
"""
