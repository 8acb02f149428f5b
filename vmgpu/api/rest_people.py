"""People, their SSH keys, their tokens and sign-in links by REST."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from starlette.responses import Response

from vmgpu.api.answers import PREFIX, Items, items
from vmgpu.api.deps import Config, Db, Me
from vmgpu.api.faults import answers
from vmgpu.errors import NotFound
from vmgpu.models import TokenKind, User, now
from vmgpu.requests import KeyRequest, TokenRequest, UserRequest
from vmgpu.service import lists, people, show
from vmgpu.service.access import Actor
from vmgpu.service.shapes import KeyOut, LinkOut, TokenOut, UserOut

router = APIRouter(prefix=PREFIX, responses=answers(401, 403, 404, 422))

Whose = Annotated[str | None, Query(max_length=100, description="Whose; yours where nobody is named")]
_CONFLICT: dict[str, Any] = {"responses": answers(409)}


@router.get("/whoami", response_model=UserOut, tags=["users"])
def whoami(db: Db, me: Me) -> UserOut:
    """The person that your token stands for."""
    with db.read() as session:
        return show.people(session, [session.get_one(User, me.id)])[0]


@router.get("/users", response_model=Items[UserOut], tags=["users"])
def list_users(db: Db, me: Me) -> Response:
    """Everybody, for an admin; else yourself."""
    with db.read() as session:
        return items(UserOut, show.people(session, lists.people(session, me)))


@router.post("/users", status_code=201, response_model=UserOut, tags=["users"], **_CONFLICT)
def add_user(asked: Annotated[UserRequest, Body(examples=[{"name": "anna"}])], db: Db, me: Me) -> UserOut:
    """Take a person in."""
    return _user(db, me, people.add_user(db, me, asked).name)


@router.get("/users/{name}", response_model=UserOut, tags=["users"])
def show_user(name: str, db: Db, me: Me) -> UserOut:
    """One person."""
    return _user(db, me, name)


@router.delete("/users/{name}", status_code=204, tags=["users"], **_CONFLICT)
def remove_user(name: str, db: Db, me: Me) -> None:
    """Let a person go; refused while they have VMs or images."""
    people.remove_user(db, me, name)


@router.post("/users/{name}/link", status_code=201, response_model=LinkOut, tags=["users"])
def make_link(name: str, db: Db, settings: Config, me: Me) -> LinkOut:
    """A link that signs this person's browser in, once."""
    expires_at = now() + people.LINK_LASTS
    secret = people.make_link(db, me, name)
    return LinkOut(user=name, url=f"{settings.base_url}/signin?link={secret}", expires_at=expires_at)


@router.get("/keys", response_model=Items[KeyOut], tags=["keys"])
def list_keys(db: Db, me: Me, user: Whose = None) -> Response:
    """The SSH keys that open a person's VMs."""
    with db.read() as session:
        owner, rows = lists.keys(session, me, user)
        return items(KeyOut, [show.key(row, owner.name) for row in rows])


@router.post("/keys", status_code=201, response_model=Items[KeyOut], tags=["keys"], **_CONFLICT)
def add_keys(
    asked: Annotated[KeyRequest, Body(examples=[{"keys": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5… anna@laptop"}])],
    db: Db,
    me: Me,
    user: Whose = None,
) -> Response:
    """Take in public keys, one or several lines; they are in VMs that are built from then on."""
    rows = people.add_keys(db, me, user or me.name, asked)
    return items(KeyOut, [show.key(row, user or me.name) for row in rows], status=201)


@router.delete("/keys/{key:path}", status_code=204, tags=["keys"])
def remove_key(key: str, db: Db, me: Me, user: Whose = None) -> None:
    """Forget a key, by id or fingerprint; VMs that were built with it keep it."""
    people.remove_key(db, me, user or me.name, key)


@router.get("/tokens", response_model=Items[TokenOut], tags=["tokens"])
def list_tokens(db: Db, me: Me, user: Whose = None) -> Response:
    """A person's tokens and browser sessions, without their secrets."""
    with db.read() as session:
        owner, rows = lists.tokens(session, me, user)
        return items(TokenOut, [show.token(row, owner.name) for row in rows if row.kind is not TokenKind.link])


@router.post("/tokens", status_code=201, response_model=TokenOut, tags=["tokens"])
def add_token(
    asked: Annotated[TokenRequest, Body(examples=[{"name": "ci", "valid": "30d"}])],
    db: Db,
    me: Me,
    user: Whose = None,
) -> TokenOut:
    """A token for scripts; its secret is in this answer and never again."""
    row, secret = people.add_token(db, me, user or me.name, asked)
    return show.token(row, user or me.name, secret=secret)


@router.delete("/tokens/{token}", status_code=204, tags=["tokens"])
def remove_token(token: str, db: Db, me: Me) -> None:
    """Make a token worthless."""
    people.remove_token(db, me, token)


def _user(db: Db, me: Actor, name: str) -> UserOut:
    with db.read() as session:
        row = next((user for user in lists.people(session, me) if name in (user.name, user.id)), None)
        if row is None:
            raise NotFound(f"There is no user {name!r} that you can see", hint="List them: vmgpu user list.")
        return show.people(session, [row])[0]
